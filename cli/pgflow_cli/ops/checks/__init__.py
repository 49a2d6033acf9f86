"""Checks of ``pgflow doctor``. A check answers findings; each says what was found and what to do
about it.

`server` is about Postgres and the way to it, `schema` about what is installed and what the role may
do, `work` about workers and runs.
"""
