"""Authority: who may let an act happen, what may be spent, what is owed."""
