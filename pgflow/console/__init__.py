"""Shared parts of the console's two faces, web pages and a terminal: questions, orders and words.

Both read by :mod:`pgflow.inspect` and write by the verbs of a client, and by nothing else. The
texts on a run, an order or a debt are here, once for both faces.
"""
