"""Shared parts of all commands: what was typed, what is meant by it, and the forms of an answer."""
