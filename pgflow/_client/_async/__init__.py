"""Clients and handles, in one colour."""
