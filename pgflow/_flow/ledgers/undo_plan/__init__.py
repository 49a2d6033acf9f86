"""Plans by which a model takes back what has no compensation."""
