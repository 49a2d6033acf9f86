"""Migrations that have landed are frozen: `tests/migrations.sha256` holds the hash of each.

Databases have applied them, and `migrate` refuses a schema whose migration has another text. Add a
migration with the next free number, then record it: ``PGFLOW_UPDATE_SNAPSHOT=1 pytest
tests/sql/test_migrations.py`` adds its line. It never changes one that is there, so ``cd migrations
&& sha256sum -c ../tests/migrations.sha256`` says the same.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
MIGRATIONS = HERE.parent / "migrations"
FROZEN = HERE / "migrations.sha256"


def read_frozen(text: str) -> dict[str, str]:
    """Name of the file -> its hash, from lines as `sha256sum` writes them."""
    lines = [line.split() for line in text.splitlines()]
    frozen = {name: sha256 for sha256, name in lines}
    assert len(frozen) == len(lines), "two lines for one migration"
    return frozen


def hash_migrations(folder: Path) -> dict[str, str]:
    """Name of the file -> the hash of what it holds now."""
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.glob("*.sql"))
    }


def judge(frozen: dict[str, str], found: dict[str, str]) -> list[str]:
    """One line for each landed migration that changed or is gone, and for each that nobody
    recorded.
    """
    gone = [f"{name} has landed and is gone" for name in frozen.keys() - found.keys()]
    changed = [
        f"{name} has landed and was changed: add a new migration instead"
        for name in frozen.keys() & found.keys()
        if frozen[name] != found[name]
    ]
    new = [
        f"{name} is not in {FROZEN.name}: PGFLOW_UPDATE_SNAPSHOT=1 pytest "
        "tests/sql/test_migrations.py"
        for name in found.keys() - frozen.keys()
    ]
    return sorted(gone + changed + new)


def test_landed_migrations_are_frozen():
    frozen, found = read_frozen(FROZEN.read_text()), hash_migrations(MIGRATIONS)
    if os.environ.get("PGFLOW_UPDATE_SNAPSHOT"):
        frozen = {**found, **frozen}
        FROZEN.write_text(
            "".join(
                f"{sha256}  {name}\n"
                for name, sha256 in sorted(frozen.items(), key=lambda item: item[0])
            )
        )
    assert judge(frozen, found) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda folder: (folder / "0001_a.sql").write_text("select 1; "),
            "0001_a.sql has landed and was changed: add a new migration instead",
        ),
        (lambda folder: (folder / "0001_a.sql").unlink(), "0001_a.sql has landed and is gone"),
        (lambda folder: (folder / "0002_b.sql").touch(), "0002_b.sql is not in migrations.sha256"),
    ],
    ids=["changed", "removed", "not recorded"],
)
def test_a_change_of_a_landed_migration_is_named(tmp_path, change, said):
    (tmp_path / "0001_a.sql").write_text("select 1;")
    landed = hash_migrations(tmp_path)
    assert judge(landed, hash_migrations(tmp_path)) == []
    change(tmp_path)
    (line,) = judge(landed, hash_migrations(tmp_path))
    assert line.startswith(said)


def test_the_numbers_of_migrations_run_from_one_without_a_gap():
    numbers = [int(file.name[:4]) for file in sorted(MIGRATIONS.glob("*.sql"))]
    assert numbers == list(range(1, len(numbers) + 1))
