"""pgflow inside an application: the transaction that writes the application's rows starts a run."""
