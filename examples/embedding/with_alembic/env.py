"""Alembic's environment; ``include_name`` is the line for pgflow."""

from __future__ import annotations

import os

from alembic import context
from sqlalchemy import create_engine, make_url
from sqlalchemy.pool import NullPool

from examples.embedding.with_alembic.shop import Base
from pgflow.alembic import include_name

engine = create_engine(
    make_url(os.environ["PGFLOW_DSN"]).set(drivername="postgresql+psycopg"), poolclass=NullPool
)
with engine.connect() as connection:
    context.configure(
        connection, target_metadata=Base.metadata, include_schemas=True, include_name=include_name
    )
    with context.begin_transaction():
        context.run_migrations()
