"""Alembic: autogenerate leaves pgflow's schema alone, and a migration starts runs that its rollback
takes with it.

``env.py`` includes all schemas but pgflow's. ``versions/0002_ship.py`` adds a column and starts a
run for each open order: schema, rows and runs are one transaction.

Run it: ``PGFLOW_DSN=postgresql://... alembic -c examples/embedding/with_alembic/alembic.ini upgrade
head``
"""
