"""What is made of something else is up to date: `python -m tools.generate` writes it.

The snapshot of the schema is compared where schemas are installed, in `tests/sql/test_schema.py`.
"""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from tools import generate

if TYPE_CHECKING:
    import psycopg


def test_files_are_those_of_their_sources() -> None:
    """In a process of its own: the fixtures of this one replace functions that are documented."""
    command = [sys.executable, "-m", "tools.generate", "--check", *generate.OF_FILES]
    made = subprocess.run(
        command, cwd=generate.REPOSITORY, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, f"python -m tools.generate\n{made.stderr}"


def test_the_page_on_sql_is_that_of_the_catalog(db: psycopg.Connection) -> None:
    assert generate.stale(generate.sql_page(db)) == {}, "python -m tools.generate"
