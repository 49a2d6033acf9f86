"""Effects, sagas and what a run hands on of them."""
