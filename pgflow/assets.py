"""The SQL that a version brings, and the stamp by which a database says which it has.

``pgflow --version`` needs little more than this, so it imports little.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from pgflow._version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterator
    from importlib.resources.abc import Traversable

DISTRIBUTION = "pgflow-engine"

_GRANT = re.compile(r"^--! grant (\w+) to ([\w, ]+)$", re.MULTILINE)


class SqlFile(NamedTuple):
    """A file of SQL: ``name`` is its path below `migrations/` or `sql/`, without the suffix."""

    name: str
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def number(self) -> int:
        """Number of a migration: the four digits that its name starts with."""
        return int(self.name[:4])

    @property
    def is_breaking(self) -> bool:
        return re.search(r"^--! breaking-change", self.text, re.MULTILINE) is not None


class Assets(NamedTuple):
    """All SQL of one version, in the order in which it is applied."""

    version: str
    migrations: tuple[SqlFile, ...]
    sources: tuple[SqlFile, ...]

    @property
    def grants(self) -> dict[str, list[str]]:
        """The roles that may use each function and view: of the lines ``--! grant NAME to ROLE,
        ...`` in the files.
        """
        return {
            name: roles.split(", ")
            for file in self.sources
            for name, roles in _GRANT.findall(file.text)
        }

    @property
    def stamp(self) -> Stamp:
        return _stamp_of(self)


class Stamp(NamedTuple):
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


@cache
def _stamp_of(assets: Assets) -> Stamp:
    digest = hashlib.sha256(
        "\n".join(f"{f.name} {f.sha256}" for f in (*assets.migrations, *assets.sources)).encode()
    )
    first, last = assets.migrations[0].number, assets.migrations[-1].number
    breaking = max((file.number for file in assets.migrations if file.is_breaking), default=first)
    return Stamp(assets.version, last, breaking, digest.hexdigest()[:16])


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
    packaged = Path(__file__).parent
    root = packaged if (packaged / "migrations").is_dir() else packaged.parent
    return read_assets(root, __version__)


def is_compiled() -> bool:
    """Return True if the engine runs as machine code. It behaves the same either way."""
    found = importlib.util.find_spec("pgflow._engine.execution")
    return found is not None and not str(found.origin).endswith(".py")
