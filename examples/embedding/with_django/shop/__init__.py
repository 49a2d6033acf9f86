"""A shop: orders, stock, and the workflow that ships."""
