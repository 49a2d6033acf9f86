"""Workflows declared in files: YAML DAGs, Agent SOPs and ICM workspaces, compiled to one graph.

None of this needs a database: files are read, checked, drawn and dry-run as their originals would take them.
"""
