"""Commands on a database and its workers."""
