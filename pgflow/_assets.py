"""The SQL that a version brings, and the stamp by which a database says which it has."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Self

from pgflow._version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

DISTRIBUTION = "pgflow-engine"

_GRANT = re.compile(r"^--! grant (\w+) to ([\w, ]+)$", re.MULTILINE)


@dataclass(frozen=True)
class SqlFile:
    """A file of SQL: ``name`` is its path below `migrations/` or `sql/`, without the suffix."""

    name: str
    text: str

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def number(self) -> int:
        """Number of a migration: the four digits that its name starts with."""
        return int(self.name[:4])

    @property
    def is_breaking(self) -> bool:
        return re.search(r"^--! breaking-change", self.text, re.MULTILINE) is not None


@dataclass(frozen=True)
class Assets:
    """All SQL of one version, in the order in which it is applied."""

    version: str
    migrations: tuple[SqlFile, ...]
    sources: tuple[SqlFile, ...]

    @cached_property
    def grants(self) -> dict[str, list[str]]:
        """The roles that may use each function and view: of the lines ``--! grant NAME to ROLE,
        ...`` in the files.
        """
        return {
            name: roles.split(", ")
            for file in self.sources
            for name, roles in _GRANT.findall(file.text)
        }

    @cached_property
    def stamp(self) -> Stamp:
        digest = hashlib.sha256(
            "\n".join(f"{f.name} {f.sha256}" for f in (*self.migrations, *self.sources)).encode()
        )
        first, last = self.migrations[0].number, self.migrations[-1].number
        breaking = max((file.number for file in self.migrations if file.is_breaking), default=first)
        return Stamp(self.version, last, breaking, digest.hexdigest()[:16])


@dataclass(frozen=True)
class Stamp:
    """Comment of the schema: the version that installed it, and the files of that."""

    version: str
    schema: int
    breaking: int
    files: str

    @classmethod
    def parse(cls, comment: str | None) -> Self | None:
        found = re.match(
            r"pgflow-engine (\S+) \(schema (\d+), breaking (\d+), files (\w+)\)", comment or ""
        )
        return cls(found[1], int(found[2]), int(found[3]), found[4]) if found else None

    def __str__(self) -> str:
        return (
            f"{DISTRIBUTION} {self.version} (schema {self.schema}, "
            f"breaking {self.breaking}, files {self.files})"
        )

    @property
    def brief(self) -> str:
        """As lists and logs show it: copies of one version with other files differ in it."""
        return f"{self.version} (schema {self.schema}, files {self.files[:8]})"

    @property
    def age(self) -> tuple[int, tuple[int, ...]]:
        return self.schema, tuple(int(digits) for digits in re.findall(r"\d+", self.version)[:3])


def read_assets(root: Traversable, version: str) -> Assets:
    """Read the folders `migrations` and `sql` below ``root``."""
    migrations = sorted(_sql_files(root / "migrations"), key=lambda file: file.number)
    sources = sorted(
        _sql_files(root / "sql"), key=lambda file: (file.name == "privileges", file.name)
    )
    assert len({file.number for file in migrations}) == len(migrations), (
        "two migrations have the same number"
    )
    return Assets(version, tuple(migrations), tuple(sources))


def _sql_files(folder: Traversable, prefix: str = "") -> Iterator[SqlFile]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _sql_files(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".sql"):
            yield SqlFile(
                prefix + entry.name.removesuffix(".sql"), entry.read_text(encoding="utf-8")
            )


@cache
def own_assets() -> Assets:
    """The SQL of this version: inside the installed package, else beside it in a checkout."""
    packaged = resources.files("pgflow")
    return read_assets(
        packaged if (packaged / "migrations").is_dir() else Path(__file__).parents[1], __version__
    )
