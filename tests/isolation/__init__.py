"""Specs for Postgres' `isolationtester`, what they must print, and the table they are written from;
see `isolationkit`.
"""
