"""What is made of something else is up to date: `python -m tools.generate` writes it.

The snapshot of the schema is compared where schemas are installed, in `tests/sql/test_schema.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tools import generate

if TYPE_CHECKING:
    import psycopg


@pytest.mark.parametrize("kind", generate.OF_FILES)
def test_files_are_those_of_their_sources(kind: str) -> None:
    assert generate.stale(generate.OF_FILES[kind]()) == {}, "python -m tools.generate"


def test_the_page_on_sql_is_that_of_the_catalog(db: psycopg.Connection) -> None:
    assert generate.stale(generate.sql_page(db)) == {}, "python -m tools.generate"
