"""One call of a stored function, for connections of both colours."""
