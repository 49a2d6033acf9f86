# Made by tools/colours.py from pgflow/_client/_async/__init__.py; edit that one.
"""Clients and handles, in one colour."""
