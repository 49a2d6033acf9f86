"""Authority: approvals, budgets and obligations."""
