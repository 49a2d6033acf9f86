"""Alembic: autogenerate leaves the schema ``pgflow`` alone.

pgflow has migrations of its own (``pgflow migrate``). An ``env.py`` that looks at all schemas would
see tables that no model of the application knows, and propose to drop them::

    context.configure(..., include_schemas=True, include_name=pgflow.alembic.include_name)

A migration may start runs: ``app.using(op.get_bind())`` joins its transaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["include_name"]

_SCHEMA = "pgflow"


def include_name(name: str | None, type_: str, parent_names: Mapping[Any, str | None]) -> bool:
    """Return False for schemas, tables, columns, indexes and constraints of pgflow, which Alembic
    must ignore.

    Args:
        name: Its name; None for the default schema.
        type_: ``schema``, ``table``, ``column`` and so on.
        parent_names: Names around it: ``schema_name``, ``table_name``.

    Returns:
        False for the schema ``pgflow`` and whatever is in it.

    Example::

        def mine(name, type_, parents):
            return name != "legacy" and pgflow.alembic.include_name(name, type_, parents)
    """
    schema = name if type_ == "schema" else parent_names.get("schema_name")
    return schema != _SCHEMA
