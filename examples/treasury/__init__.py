"""The main example: see README.md beside this file."""
