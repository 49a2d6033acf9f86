"""Programs for those who work on pgflow: nothing here is installed."""
