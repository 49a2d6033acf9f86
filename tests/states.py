"""Landed states of pgflow, as others run them: `python -m tests.states record [COMMIT]`, `python -m
tests.states list`.

`tests/landed/` holds one archive a state: the library, the command line and the SQL of one commit,
named `<version>-<migrations>-<digest>.tar.xz` by the stamp that this version writes into a
database. What upgrades must cope with is taken from there and not from the history, which a shallow
clone or a tarball lacks. Record a state when you release it, with its migrations in
`tests/migrations.sha256`. Recorded states are never changed or removed before the release after the
next minor one.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import io
import json
import lzma
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pgflow.schema import Assets, own_assets, read_assets

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).parents[1]
LANDED = Path(__file__).with_name("landed")
RECORDED = ("pgflow", "cli", "sql", "migrations")
SUFFIX = ".tar.xz"
FROZEN_SINCE = "52840f2"
"""The last commit that changed a migration in place. What landed from it on can be upgraded."""


@dataclass(frozen=True)
class State:
    """One landed state, unpacked in ``folder``."""

    name: str
    folder: Path

    @property
    def assets(self) -> Assets:
        """Its SQL."""
        return read_assets(self.folder, self.version)

    @property
    def version(self) -> str:
        """Its version."""
        return self.name.split("-")[0]

    @property
    def environment(self) -> dict[str, str]:
        """In which a Python process runs this state's library and no other."""
        path = os.pathsep.join([str(self.folder), str(self.folder / "cli")])
        return {**os.environ, "PYTHONPATH": path}

    def run(self, *command: str) -> str:
        """Output of a Python program under this state's library."""
        done = subprocess.run(
            [sys.executable, *command],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        return done.stdout

    def calls(self) -> list[str]:
        """Every statement of its `pgflow/_db/calls`, with psycopg's placeholders."""
        said: list[str] = json.loads(
            self.run(str(Path(__file__).resolve()), "calls", str(self.folder))
        )
        return said


def names() -> list[str]:
    """Names of the recorded states, oldest first."""
    found = [file.name.removesuffix(SUFFIX) for file in LANDED.glob(f"*{SUFFIX}")]
    return sorted(found, key=lambda name: (int(name.split("-")[1]), name))


@contextmanager
def unpacked(name: str) -> Iterator[State]:
    """One recorded state, unpacked for as long as it is needed."""
    with (
        tempfile.TemporaryDirectory(prefix="pgflow-landed-") as folder,
        tarfile.open(LANDED / f"{name}{SUFFIX}") as archive,
    ):
        archive.extractall(folder, filter="data")
        yield State(name, Path(folder))


def record(commit: str) -> str:
    """Writes the archive of a commit; returns its name."""
    made = subprocess.run(
        ["git", "archive", "--format=tar", commit, *RECORDED],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
    ).stdout
    with tempfile.TemporaryDirectory() as folder:
        with tarfile.open(fileobj=io.BytesIO(made)) as archive:
            archive.extractall(folder, filter="data")
        name = name_of(Path(folder))
    LANDED.mkdir(exist_ok=True)
    (LANDED / f"{name}{SUFFIX}").write_bytes(lzma.compress(made, preset=9 | lzma.PRESET_EXTREME))
    return name


def in_history() -> list[Assets]:
    """The SQL of every commit since migrations were frozen, newest first, each text once; nothing
    where the history is not at hand.
    """
    listing = subprocess.run(
        ["git", "log", "--format=%H", f"{FROZEN_SINCE}^..HEAD", "--", "sql", "migrations"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    found: dict[str, Assets] = {}
    ours = {(file.name, file.sha256) for file in own_assets().migrations}
    for commit in listing.stdout.split() if listing.returncode == 0 else ():
        made = subprocess.run(
            ["git", "archive", "--format=tar", commit, "sql", "migrations"],
            cwd=REPOSITORY,
            capture_output=True,
            check=True,
        ).stdout
        with (
            tempfile.TemporaryDirectory() as folder,
            tarfile.open(fileobj=io.BytesIO(made)) as archive,
        ):
            archive.extractall(folder, filter="data")
            try:
                assets = read_assets(Path(folder), "0.1.0")
            except (
                AssertionError
            ):  # two migrations under one number had landed at once: nobody could install that
                continue
            if not {(file.name, file.sha256) for file in assets.migrations} <= ours:
                continue  # a migration was changed before it landed
            found.setdefault(assets.stamp.files, assets)  # read while the folder is there
    return list(found.values())


def name_of(folder: Path) -> str:
    """Name of the state whose files are in a folder."""
    text = (folder / "pgflow" / "_version.py").read_text()
    version = next(
        node.value
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Constant) and _is_version(node.value)
    )
    stamp = read_assets(folder, str(version)).stamp
    return f"{version}-{stamp.schema}-{stamp.files}"


def _is_version(value: Any) -> bool:
    return isinstance(value, str) and value[:1].isdigit()


def find_calls(folder: Path) -> list[str]:
    """The statements in the texts of the room of calls; what is put into them stands at the top of
    its module.
    """
    found = []
    room = next(
        room for room in ("pgflow/_db/calls", "pgflow/_calls") if (folder / room).is_dir()
    )  # the latter in earlier versions
    for file in sorted((folder / room).glob("[!_]*.py")):
        module = importlib.import_module(f"{room.replace('/', '.')}.{file.stem}")
        assert Path(str(module.__file__)).resolve() == file.resolve(), (
            f"{module.__file__} is not the state's"
        )
        tree = ast.parse(file.read_text())
        inside = {
            id(part)
            for node in ast.walk(tree)
            if isinstance(node, ast.JoinedStr)
            for part in ast.walk(node)
            if part is not node
        }
        for node in ast.walk(tree):
            if id(node) in inside or not isinstance(node, ast.JoinedStr | ast.Constant):
                continue
            text = (
                eval(compile(ast.Expression(node), file.name, "eval"), vars(module))
                if _may_be_sql(node)
                else None
            )  # noqa: S307 - our own text
            if (
                isinstance(text, str)
                and text.lstrip().startswith(("select", "with"))
                and "pgflow." in text
            ):
                found.append(text.strip())
        texts = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        ]
        called = {name for text in texts for name in re.findall(r"pgflow\.(\w+)\(", text)}
        resolved = {name for text in found for name in re.findall(r"pgflow\.(\w+)\(", text)}
        assert called <= resolved, (
            f"{file.name} calls {called - resolved} in a way that nobody reads"
        )
    return found


def _may_be_sql(node: ast.AST) -> bool:
    return "select" in ast.unparse(node)


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.states",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("record", help="record a commit").add_argument(
        "commit", nargs="?", default="HEAD"
    )
    commands.add_parser("list", help="print the recorded states")
    commands.add_parser(
        "calls", help="print the statements of the library in a folder, as JSON"
    ).add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "record":
        print(f"recorded {record(options.commit)}: add the file to the commit")
    elif options.command == "list":
        print("\n".join(names()))
    else:
        print(json.dumps(find_calls(options.folder)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
