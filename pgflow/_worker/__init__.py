"""One process that works: claims, bodies, commits, and the loops beside them."""
