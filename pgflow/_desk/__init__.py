"""Shared parts of the console's two faces, pages and a terminal: what they ask and tell, in words.

Both read by :mod:`pgflow.inspect` and write by the verbs of a client, and by nothing else. What a
person is told of a run, an order or a debt is said here once, whichever face shows it.
"""
