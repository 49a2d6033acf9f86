"""Entities: state that runs share, with its updates, queries and versions."""

from pgflow._flow.entities import Snapshot, Update, entity, query, update

__all__ = ["Snapshot", "Update", "entity", "query", "update"]
