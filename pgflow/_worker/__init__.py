"""The worker process: it claims runs, runs bodies, commits, and keeps the loops beside them."""
