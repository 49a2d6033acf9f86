"""The pages, one module for each concept."""
