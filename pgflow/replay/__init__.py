"""Replay recorded runs against the present code."""
