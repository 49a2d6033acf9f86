"""Play of a graph: what happens next, as pure functions, and the dry run over stubs."""
