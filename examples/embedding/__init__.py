"""pgflow inside an application: a run is started by the transaction that writes the application's
rows.
"""
