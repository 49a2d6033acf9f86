"""``sql/runs/blobs.sql``: large values in chunks."""

from __future__ import annotations

from pgflow._db.query import Query, Row


def open_blob(tenant: str) -> Query[int]:
    """Begin a blob for runs of a tenant; return its number."""
    return Query("select pgflow.open_blob(%s::text)", (tenant,), lambda rows: int(rows[0][0]))


def add_chunk(blob: int, n: int, data: bytes) -> Query[None]:
    """Add a chunk to a blob."""
    sql = "select pgflow.add_chunk(%s::bigint, %s::int, %s::bytea)"
    return Query(sql, (blob, n, data), lambda _: None)


def finish_blob(blob: int) -> Query[tuple[str, int]]:
    """Complete a blob; return its digest and its length in bytes."""
    sql = "select digest, size_bytes from pgflow.finish_blob(%s::bigint)"
    return Query(sql, (blob,), lambda rows: (str(rows[0][0]), int(rows[0][1])))


def read_chunk(digest: str, n: int, tenant: str) -> Query[bytes | None]:
    """A chunk of a blob; None behind the last."""
    sql = "select pgflow.read_chunk(%s::text, %s::int, %s::text)"
    return Query(sql, (digest, n, tenant), _bytes)


def _bytes(rows: list[Row]) -> bytes | None:
    return None if rows[0][0] is None else bytes(rows[0][0])
