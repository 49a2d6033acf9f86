"""The stored functions as Python sees them:
one thin module a file of ``sql/``, nothing but calls.
"""
