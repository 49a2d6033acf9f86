"""Starts of runs, handles to them, and orders to them."""
