"""Commands on runs: starting, showing, waiting, and orders to them."""
