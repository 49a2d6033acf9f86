"""Recorded runs against the code at hand."""
