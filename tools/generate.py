"""Writes all that is made of something else in this repository: `python -m tools.generate`.

``MADE`` has a function for each kind, which returns the text that each file should have. A test
compares (`tests/house/test_generated.py`), so nothing that is made is edited. What is made of the
schema needs a server, which is started for it.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import sys
import tempfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from pgflow.schema import migrate
from tools import colours, contract, protocol, reference

REPOSITORY = Path(__file__).parents[1]
TESTS = REPOSITORY / "tests"
sys.path[:0] = map(str, (TESTS, TESTS / "kits", TESTS / "apps", TESTS / "cli"))

REFERENCE = REPOSITORY / "docs" / "reference"

Texts = dict[Path, str | None]
"""Text that each file should hold; None if it should be gone."""
Connection = psycopg.Connection[Any]


def twins() -> Texts:
    """Sync code, from async code."""
    return colours.twins()


def pages() -> Texts:
    """The reference, from docstrings."""
    return {
        REFERENCE / "python.md": reference.python_page(),
        REFERENCE / "inspect.md": reference.readers_page(),
        REFERENCE / "errors.md": reference.errors_page(),
        REFERENCE / "checks.md": reference.rules_page(),
    }


def readers() -> Texts:
    """The functions that read the rows of the protocol, from their description."""
    return {REPOSITORY / "sql" / "runs" / "protocol.sql": protocol.sql_file()}


def homes() -> Texts:
    """The module of each reader, from the imports of the surface of `pgflow.inspect`."""
    folder = REPOSITORY / "pgflow" / "inspect"
    tree = ast.parse((folder / "_surface.py").read_text())
    names = {
        node.module or "": " ".join(sorted(alias.name for alias in node.names))
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
    }
    text = [
        '"""Modules of the readers of `pgflow.inspect` and of their rows. Generated from `_surface`."""',
        "",
        "HOMES = {",
        "    name: module",
        "    for module, names in {",
        *(_entry(module, found) for module, found in names.items()),
        "    }.items()",
        "    for name in names.split()",
        "}",
        "",
    ]
    return {folder / "_homes.py": "\n".join(text)}


def _entry(module: str, names: str) -> str:
    """Return an entry of a dict: the module, and its names in strings of one line each."""
    entry = f'"{module}": "{names}"'
    lines = [entry] if len(entry) < 92 else textwrap.wrap(entry, 89)
    return textwrap.indent(' "\n"'.join(lines), " " * 8) + ","


def guarantees() -> Texts:
    """The page of the last proof, from its record, if that is there."""
    from proof import report  # type: ignore[import-not-found]

    record = REPOSITORY / "docs" / "GUARANTEES.json"
    made = report.page(json.loads(record.read_text())) if record.exists() else None
    return {REPOSITORY / "docs" / "GUARANTEES.md": made} if made else {}


def sql_page(conn: Connection) -> Texts:
    """The reference of the schema, from the comments in its catalog."""
    return {REFERENCE / "sql.md": reference.sql_page(conn)}


def other_languages(conn: Connection) -> Texts:
    """The contract with other languages, and its client in TypeScript."""
    client = REPOSITORY / "examples" / "other-languages" / "typescript" / "pgflow.ts"
    return {
        REFERENCE / "contract.md": contract.contract_page(conn),
        client: contract.typescript_client(conn),
    }


def snapshot(conn: Connection) -> Texts:
    """The whole schema as text."""
    from catalog import dump_catalog  # type: ignore[import-not-found]

    return {REPOSITORY / "tests" / "schema.sql": dump_catalog(conn)}


def session(conn: Connection) -> Texts:
    """A session at the terminal, played in a database of its own, if more than times differ."""
    import servers  # type: ignore[import-not-found]
    import test_cli_session as played  # type: ignore[import-not-found]

    server = f"{conn.info.dsn} password={conn.info.password}"
    with tempfile.TemporaryDirectory() as folder:
        dsn = servers.dsn_of(server, servers.create_database(server))
        page = played.play(dsn, Path(folder))
    is_same = played.masked(page) == played.masked(played.PAGE.read_text())
    return {} if is_same else {played.PAGE: page}


OF_FILES: dict[str, Callable[[], Texts]] = {
    "twins": twins,
    "pages": pages,
    "readers": readers,
    "homes": homes,
    "guarantees": guarantees,
}
OF_THE_SCHEMA: dict[str, Callable[[Connection], Texts]] = {
    "sql": sql_page,
    "contract": other_languages,
    "snapshot": snapshot,
    "session": session,
}


def stale(made: Texts) -> dict[Path, str]:
    """Return those files that are not what they should be, each with the difference."""
    found = {path: path.read_text() if path.exists() else None for path in made}
    return {
        path: "".join(
            difflib.unified_diff(
                (found[path] or "").splitlines(keepends=True),
                (text or "").splitlines(keepends=True),
                "is",
                "should be",
            )
        )
        for path, text in made.items()
        if text != found[path]
    }


def write(made: Texts) -> None:
    """Write the files that are out of date, and say which."""
    for path in stale(made):
        text = made[path]
        if text is None:
            path.unlink()
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        print(path)


def report(made: Texts) -> None:
    """Print how files differ, and end with 1 if one does."""
    if differences := stale(made):
        raise SystemExit("\n".join(f"{path}:\n{text}" for path, text in differences.items()))


def main() -> None:
    """Write all, or the kinds that are named."""
    parser = argparse.ArgumentParser(prog="python -m tools.generate", description=__doc__)
    kinds = [*OF_FILES, *OF_THE_SCHEMA]
    parser.add_argument("kind", nargs="*", help=f"of {', '.join(kinds)}; all if none is named")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if one differs")
    given = parser.parse_args()
    wanted = given.kind or kinds
    finish = report if given.check else write
    if unknown := set(wanted) - set(kinds):
        parser.error(f"nothing is made under the name {', '.join(unknown)}")
    for kind in wanted:
        if kind in OF_FILES:
            finish(OF_FILES[kind]())
    if set(wanted) & set(OF_THE_SCHEMA):
        from ownserver import OwnServer  # type: ignore[import-not-found]

        with OwnServer() as server, psycopg.connect(server.dsn, autocommit=True) as conn:
            migrate(conn)
            for kind in wanted:
                if kind in OF_THE_SCHEMA:
                    finish(OF_THE_SCHEMA[kind](conn))


if __name__ == "__main__":
    main()
