"""Every promise under the fault that tests it: `python -m tests.proof`. See `__main__`."""
