"""Effects and sagas, and their hand-over between generations."""
