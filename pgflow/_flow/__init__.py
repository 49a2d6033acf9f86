"""Workflows, steps and all that users write. It knows no database."""
