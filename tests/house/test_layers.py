"""The house: facts on the source that the contracts of imports cannot say.

Who may import whom stands in ``[tool.importlinter]`` of pyproject.toml, which ``make check`` judges.
Each test here names every offender at once, and each file is parsed once.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import servers

REPOSITORY = servers.REPOSITORY
PGFLOW, CLI = REPOSITORY / "pgflow", REPOSITORY / "cli" / "pgflow_cli"

ASK_INSPECT = (
    CLI,
    PGFLOW / "django",
    PGFLOW / "prometheus.py",
    PGFLOW / "testing.py",
    PGFLOW / "console",
    PGFLOW / "tui",
    PGFLOW / "doctor",
    PGFLOW / "web",
    PGFLOW / "mcp",
)
"""Rooms that read the database's views through `inspect` alone."""
DEMO = {CLI / "shop" / f"{name}.py" for name in ("stage", "chaos", "proof", "day")}
"""Modules of the demo, which join the views with tables of its own and ask for its own labels."""

PARTS = {
    "line", "clock", "buffer", "agenda", "code", "history", "values", "keys", "steps", "timers", "signals", "children", "gates", "locks", "notes", "ledger",
    "renewal", "end", "release", "flushing",
}  # fmt: skip
"""Parts of an execution, by the names under which they refer to each other."""
MUTATORS = {
    "add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popleft", "remove", "setdefault", "update",
}  # fmt: skip


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def files(*rooms: Path) -> list[Path]:
    return [path for room in rooms for path in ([room] if room.is_file() else room.rglob("*.py"))]


def place(path: Path, line: int) -> str:
    return f"{path.relative_to(REPOSITORY)}:{line}"


# ---------------------------------------------------------------- one room reads the database


def reads(module: ast.Module) -> Iterator[int]:
    """Yield the line of each text in code that reads a view, table or function of the schema:
    docstrings do not count, and of an f-string the parts that are fixed.
    """
    documented = {
        node.body[0].value
        for node in ast.walk(module)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and node not in documented:
            text = node.value.decode() if isinstance(node.value, bytes) else str(node.value)
            if re.search(r"\b(from|join)\s+pgflow\.\w", text, re.IGNORECASE):
                yield node.lineno


def test_what_is_shown_of_the_database_is_read_by_one_room():
    found = {path: list(reads(tree(path))) for path in files(*ASK_INSPECT)}
    asking = {path for path, lines in found.items() if lines}
    assert [place(path, line) for path in asking - DEMO for line in found[path]] == [], (
        "ask pgflow.inspect"
    )
    assert asking >= DEMO, "no longer there: strike it off the list"


def test_readers_are_found_in_every_kind_of_text():
    source = '''"""Rows from pgflow.runs."""
A = "select key from pgflow.runs"
B = f"select {A} from pgflow.steps"
C = b"select 1 from (select 1 from\\n  pgflow.queues) q"
D = "select * from a" + " join pgflow.workers w on true"
from pgflow.errors import PgflowError
'''
    assert sorted(reads(ast.parse(source))) == [2, 3, 4, 5]


# ---------------------------------------------------------------- a part owns its state


def assigned(within: ast.AST) -> Iterator[tuple[str, bool, int]]:
    """Attributes that code writes or deletes, each with True if they are those of ``self``, and the
    line.
    """
    for node in ast.walk(within):
        for target in getattr(node, "targets", None) or [getattr(node, "target", None)]:
            for part in getattr(target, "elts", [target]):
                thing = part
                while isinstance(thing, ast.Subscript):
                    thing = thing.value
                if isinstance(thing, ast.Attribute):
                    owner = thing.value
                    is_own = isinstance(owner, ast.Name) and owner.id == "self"
                    yield thing.attr, is_own, thing.lineno


def test_no_part_of_a_worker_writes_what_another_file_keeps():
    modules = files(PGFLOW / "_worker")
    classes = {
        node.name: (path, node)
        for path in modules
        for node in ast.walk(tree(path))
        if isinstance(node, ast.ClassDef)
    }
    own = {
        name: {attribute for attribute, is_own, _ in assigned(node) if is_own}
        for name, (_, node) in classes.items()
    }
    written = []
    for path in modules:
        here = set().union(*(own[name] for name, (its, _) in classes.items() if its == path))
        elsewhere = set().union(*own.values()) - here
        written += [
            f"{place(path, line)} writes {attribute}"
            for attribute, is_own, line in assigned(tree(path))
            if not is_own and attribute in elsewhere
        ]
    for name, (path, node) in classes.items():
        written += [
            f"{place(path, node.lineno)} writes {own[name] & own[base.id]} of {base.id}"
            for base in node.bases
            if isinstance(base, ast.Name)
            and base.id in classes
            and classes[base.id][0] != path
            and own[name] & own[base.id]
        ]
    assert written == []


def writes(within: ast.AST) -> Iterator[ast.Attribute]:
    """Attributes of a part that are written from outside: assigned, deleted, or changed by a method
    of theirs.
    """
    for node in ast.walk(within):
        match node:
            case ast.Attribute(ctx=ast.Store() | ast.Del()):
                written: ast.expr = node
            case ast.Subscript(ctx=ast.Store() | ast.Del()):
                written = node.value
            case ast.Call(func=ast.Attribute(attr=name)) if name in MUTATORS:
                written = node.func.value
            case _:
                continue
        match written:
            case ast.Attribute(value=ast.Attribute(attr=owner) | ast.Name(id=owner)):
                if owner.removeprefix("_") in PARTS:
                    yield written


def test_no_part_of_an_execution_writes_the_state_of_another():
    source = "self._agenda.open.pop(1)\nbuffer.seq = 2\ndel self.agenda.open[3]"
    assert [node.attr for node in writes(ast.parse(source))] == ["open", "seq", "open"]
    engine = PGFLOW / "_engine"
    elsewhere = [path for path in files(PGFLOW, CLI) if "execution." in path.read_text()]
    assert [
        place(path, node.lineno)
        for path in {*files(engine), *elsewhere}
        for node in writes(tree(path))
        # elsewhere other things may have such names
        if path.is_relative_to(engine) or "execution." in ast.unparse(node)
    ] == []


# ---------------------------------------------------------------- it is light


def test_importing_pgflow_takes_no_optional_dependency():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    (optional,) = (
        contract["forbidden_modules"]
        for contract in project["tool"]["importlinter"]["contracts"]
        if contract["name"].startswith("An optional dependency")
    )
    code = (
        "import site, sys; site.main(); import pgflow; "
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=True,
    )
    assert set(done.stdout.split()) & set(optional) == set()
