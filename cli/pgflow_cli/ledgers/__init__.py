"""Commands on ledgers: what is owed, and why it was done."""
