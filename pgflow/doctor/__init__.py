"""What is wrong with a database, and what to do about it: the checks of ``pgflow doctor``. A check
yields findings, each with a remedy.

`server` is about Postgres and the way to it, `schema` about what is installed and what the role may
do, `work` about workers, runs and events, `cluster` about the other nodes.
"""
