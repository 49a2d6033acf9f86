"""Checks of a database, as ``pgflow doctor`` makes them. Each finding comes with a remedy.

`server` is about Postgres and the way to it, `schema` about what is installed and what the role may
do, `work` about workers, runs and events, `cluster` about the other nodes.
"""
