"""Readers of documents."""

from __future__ import annotations

from pgflow import App, inspect
from pgflow.documents import Documents, Put


def test_documents_are_read_in_pages(dsn):
    with App(dsn) as app:
        Documents(app).put([Put("c", ("~a", str(n)), n) for n in range(3)])
        first = inspect.ask(app, inspect.list_documents("c", limit=2))
        second = inspect.ask(app, inspect.list_documents("c", limit=2, after=first.next))
    assert [row.value for row in (*first, *second)] == [0, 1, 2]
    assert second.next is None
    assert first.items[0].path == ["~a", "0"]
