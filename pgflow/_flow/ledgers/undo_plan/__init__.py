"""Plans of a model to undo effects without a compensation."""
