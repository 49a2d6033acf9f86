"""Bodies inside a transaction of the application:
the protocol, and the libraries of connections.
"""
