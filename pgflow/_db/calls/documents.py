"""``sql/coordination/documents.sql``: values under paths."""

from __future__ import annotations

from typing import NamedTuple

from pgflow._db.query import Query, Row


class Stored(NamedTuple):
    """A document as it is stored."""

    path: tuple[str, ...]
    value: str
    """JSON text."""
    created_us: int
    updated_us: int


def put_documents(documents: str) -> Query[int]:
    """Write documents, given as a JSON array; return their number."""
    return Query("select pgflow.put_documents(%s::json)", (documents,), _count)


def get_documents(collection: str, paths: str, *, refresh: bool) -> Query[list[Stored]]:
    """The documents of these paths, a JSON array of arrays, that are there."""
    sql = (
        "select path, value, created_us, updated_us"
        " from pgflow.get_documents(%s::text, %s::json, %s::boolean)"
    )
    return Query(sql, (collection, paths, refresh), _stored)


def list_documents(
    collection: str, prefix: list[str], after: list[str] | None, *, descending: bool, most: int
) -> Query[list[Stored]]:
    """A page of the documents below a folder."""
    sql = (
        "select path, value, created_us, updated_us"
        " from pgflow.list_documents(%s::text, %s::text[], %s::text[], %s::boolean, %s::int)"
    )
    return Query(sql, (collection, prefix, after, descending, most), _stored)


def list_folders(collection: str) -> Query[list[tuple[str, ...]]]:
    """The folders of a collection that have documents."""
    sql = "select folder from pgflow.list_folders(%s::text)"
    return Query(sql, (collection,), lambda rows: [tuple(row[0]) for row in rows])


def delete_documents(collection: str, paths: str) -> Query[int]:
    """Delete the documents of these paths, a JSON array of arrays; return their number."""
    sql = "select pgflow.delete_documents(%s::text, %s::json)"
    return Query(sql, (collection, paths), _count)


def delete_folder(collection: str, prefix: list[str]) -> Query[int]:
    """Delete all documents below a folder; return their number."""
    sql = "select pgflow.delete_folder(%s::text, %s::text[])"
    return Query(sql, (collection, prefix), _count)


def sweep_documents(most: int) -> Query[int]:
    """Delete expired documents; return their number."""
    return Query("select pgflow.sweep_documents(%s::int)", (most,), _count)


def _count(rows: list[Row]) -> int:
    return int(rows[0][0])


def _stored(rows: list[Row]) -> list[Stored]:
    return [Stored(tuple(path), value, created, updated) for path, value, created, updated in rows]
