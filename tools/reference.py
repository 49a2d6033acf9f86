"""Makes the pages of docs/reference/ from what they are about: docstrings, the catalog's comments,
the tree of errors.

Nothing is listed here by hand. A name in ``__all__`` of a public module has an entry, beside those
that the same concept has: the module where a thing is defined says which that is, and a page of
docs/how-to with that name is linked. So has what the docstring of an entry refers to.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
import typing
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, LiteralString

import psycopg

import pgflow
from pgflow import errors, lint
from pgflow import inspect as readers
from tools.colours import of_the_other_colour

MADE = "<!-- Made by tools/reference.py; do not edit. -->\n"
HOW_TO = Path(__file__).parents[1] / "docs" / "how-to"

# ---------------------------------------------------------------- names

NO_SURFACE = {
    "app": "its names are those of pgflow",
    "assets": "the command line is its surface",
    "console": "pages and the terminal are its surface",
    "doctor": "the command line is its surface",
    "errors": "they have a page",
    "inspect": "they have a page",
    "lint": "its rules have a page",
    "peers": "the command line is its surface",
    "replay": "`pgflow.testing` and the command line are its surface",
    "schema": "the command line is its surface",
    "sync": "the twins of functions of pgflow",
    "texts": "it is used by what the surface is made of",
    "tui": "the command line is its surface",
}
"""Public modules without entries of their own."""


def surface(module: ModuleType) -> list[Any]:
    """Return the classes and functions that a module offers: what ``__all__`` names, or else what
    it defines itself.
    """
    own = [n for n, v in vars(module).items() if getattr(v, "__module__", "") == module.__name__]
    offered = (
        getattr(module, name)
        for name in getattr(
            module, "__all__", [n for n in own if not n.startswith(("_", "pytest_"))]
        )
    )
    things = [getattr(thing, "fn", thing) for thing in offered]
    return [
        thing
        for thing in things
        if (inspect.isclass(thing) or inspect.isfunction(thing))
        and thing.__module__.startswith("pgflow")
        and thing.__module__ != errors.__name__
    ]


@cache
def offered() -> dict[str, list[Any]]:
    """Return the surface of each public module, by its name; each thing stands once."""
    found = {"pgflow": surface(pgflow)}
    for info in pkgutil.iter_modules(pgflow.__path__):
        if not info.name.startswith("_") and info.name not in NO_SURFACE:
            name = f"pgflow.{info.name}"
            known = set().union(*found.values())
            things = [t for t in surface(importlib.import_module(name)) if t not in known]
            if things:
                found[name] = things
    return found


@cache
def modules() -> dict[str, list[Any]]:
    """Return that with what its docstrings refer to."""
    return {name: list(dict.fromkeys([*of, *_referred(of)])) for name, of in offered().items()}


def _referred(things: list[Any]) -> Iterator[type]:
    """Yield the classes of private modules that docstrings name in full."""
    for thing in things:
        members = [member for _, member in _methods(thing)] if inspect.isclass(thing) else []
        for documented in (thing, *members):
            for module, name in re.findall(
                r":class:`~?(pgflow(?:\.\w+)*\._[\w.]+)\.(\w+)`", inspect.getdoc(documented) or ""
            ):
                yield getattr(importlib.import_module(module), name)


def concepts(things: list[Any]) -> dict[str, list[Any]]:
    """Return things by the concept that they belong to, in the order of the alphabet."""
    words: dict[str, str] = {}
    found: dict[str, list[Any]] = {}
    for thing in things:
        parts = [part for part in thing.__module__.split(".") if not part.startswith("_")]
        stem = re.sub("ies$", "y", parts[-1]).removesuffix("s")
        words[stem] = max(words.get(stem, ""), parts[-1], key=len)
        found.setdefault(stem, []).append(thing)
    return {words[stem].replace("_", " "): found[stem] for stem in sorted(found, key=words.get)}  # type: ignore[arg-type]


def how_to(word: str) -> list[str]:
    """Return a line with a link to the page on how to use this, if there is one."""
    for name in (word, f"{word}s"):
        page = HOW_TO / f"{name.replace(' ', '-')}.md"
        if page.exists():
            title = page.read_text().splitlines()[0].removeprefix("# ")
            return [f"See [{title}](../how-to/{page.name}).\n"]
    return []


# ---------------------------------------------------------------- Python


def python_page() -> str:
    """The public surface, from its docstrings."""
    said = [
        MADE,
        "# Python\n",
        f"{_first_words(pgflow)}\n",
        "[Errors](errors.md) and [readers of the database](inspect.md) have pages of their own.\n",
    ]
    for name, things in modules().items():
        if name == "pgflow":
            for concept, those in concepts(things).items():
                said += [f"## {concept.capitalize()}\n", *how_to(concept), *map(_entry, those)]
        else:
            words = _first_words(sys.modules[name]).split("\n\n")[0]
            pages = dict.fromkeys([name.removeprefix("pgflow."), *concepts(things)])
            said += [
                f"## {name}\n",
                f"{words}\n",
                *(link for page in pages for link in how_to(page)),
            ]
            said += map(_entry, things)
    return "\n".join(said)


def readers_page() -> str:
    """The readers of the database, from their docstrings."""
    said = [
        MADE,
        "# Readers of the database\n",
        f"{_first_words(readers)}\n",
        "[Read runs from Python](../how-to/read-runs.md) shows them at work.\n",
    ]
    by_name = sorted(surface(readers), key=lambda thing: str(thing.__name__))
    for concept, things in concepts(by_name).items():
        said += [f"## {concept.capitalize()}\n", *how_to(concept)]
        said += [
            _row(thing)
            if inspect.isclass(thing) and thing is not readers.RunFilter
            else _entry(thing)
            for thing in things
        ]
    return "\n".join(said)


def _row(thing: type) -> str:
    """A class that is only ever read, never called."""
    methods = [line for member in _methods(thing) if (line := _method(*member, None))]
    said = [f"### `{thing.__qualname__}`\n", f"{_prose(inspect.getdoc(thing) or '')}\n"]
    return "\n".join([*said, "\n".join(methods) + "\n"] if methods else said)


def _first_words(thing: Any) -> str:
    return _prose(inspect.getdoc(thing) or "")


def _entry(thing: Any) -> str:
    name = thing.__qualname__
    doc = inspect.getdoc(thing) or ""
    if not inspect.isclass(thing):
        return f"### `{name}`\n\n`{_signature(thing)}`\n\n{_prose(doc)}\n"
    said = [f"### `{name}`\n"]
    made = (
        (thing.__init__.__doc__ and inspect.getdoc(thing.__init__)) or ""
        if getattr(thing.__init__, "__module__", "").startswith("pgflow")
        else ""
    )
    if hasattr(thing, "__dataclass_fields__") or made or "Args:" in doc:
        said.append(f"`{thing.__name__}{_parameters(thing.__init__)}`\n")
    said.append(f"{_prose(doc.replace('; see :class:`AppBase` for its arguments', ''))}\n")
    if made:
        said.append(f"{_prose(made)}\n")
    twin = next(
        (
            other
            for things in modules().values()
            for other in things
            if other.__name__ == of_the_other_colour(name) != name
        ),
        None,
    )
    methods = [line for member in _methods(thing) if (line := _method(*member, twin))]
    if methods:
        said.append("\n".join(methods) + "\n")
    return "\n".join(said)


def _methods(cls: type) -> list[tuple[str, Any]]:
    """Public methods and properties, those of our bases too if these are not documented by
    themselves.
    """
    documented = set().union(*offered().values())
    own = [
        base
        for base in cls.__mro__
        if base is cls or (base.__module__.startswith("pgflow") and base not in documented)
    ]
    found: dict[str, Any] = {}
    for base in own:
        for name, member in vars(base).items():
            if (
                not name.startswith("_")
                and name not in found
                and (inspect.isfunction(member) or isinstance(member, (property, staticmethod)))
            ):
                found[name] = member
    return list(found.items())


INTERNAL = {"ask", "wait", "definitions", "listens", "on"} | {
    "kind",
    "as_step",
    "args_codec",
    "verdict_codec",
    "encode_args",
    "statements",
    "declared",
    "timeout_",
    "spec",
    "issue",
    "calls",
    "has_compensation",
    "code",
    "issue_compensation",
    "issue_by_hand",
    "read_request",
}
"""Public in the language's sense only; the second set is what the engine asks of an effect."""


def _method(name: str, member: Any, twin: type | None) -> str | None:
    """A method and its docstring; of that only the first line, if the twin of the other colour has
    the same.
    """
    fn = member.fget if isinstance(member, property) else member
    doc = inspect.getdoc(fn)
    if (
        doc is None
        or (name in INTERNAL and "wait" not in doc.lower().split()[0])
        or "For handles of runs" in doc
    ):
        return None
    if (
        twin is not None
        and "\n" in doc
        and of_the_other_colour(doc) == inspect.getdoc(getattr(twin, name, None))
    ):
        doc = f"{doc.splitlines()[0].removesuffix('.')}; see :meth:`{twin.__name__}.{name}`."
    head = f"- `{name}`" if isinstance(member, property) else f"- `{_signature(fn)}`"
    return f"{head}: {textwrap.indent(_prose(doc), '  ').lstrip()}"


def _signature(fn: Any) -> str:
    """A call as people write it. Of overloads, the one with options."""
    overloads = typing.get_overloads(inspect.unwrap(fn))
    target = overloads[-1] if overloads else fn
    prefix = "async " if inspect.iscoroutinefunction(target) else ""
    return f"{prefix}{fn.__name__}{_parameters(target)}"


def _parameters(fn: Any) -> str:
    return f"({', '.join(_shown(list(inspect.signature(fn).parameters.values())))})"


def _shown(parameters: list[inspect.Parameter]) -> list[str]:
    shown, starred = [], False
    for parameter in parameters:
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
        shown.append(stars + _field(parameter))
    return shown


def _field(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return parameter.name
    default = repr(parameter.default)
    return f"{parameter.name}={'...' if '<' in default or len(default) > 30 else default}"


def _prose(doc: str) -> str:
    """A docstring in Markdown: sections as lists, cross-references as code, examples as blocks."""
    doc = re.sub(
        r":(?:func|class|meth|mod):`~?(?:pgflow\.(?:(?:_\w+\.)+(?:[a-z_]+\.)*(?=\w+`)|(?=[a-z_]+`)))?([^`]*)`",
        r"`\1`",
        doc,
    ).replace("``", "`")
    out: list[str] = []
    lines = doc.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        section = re.fullmatch(r"(Args|Returns|Raises|Attributes|Example)::?", line)
        code = line.endswith("::") and not section
        if not section and not code:
            out.append(line)
            at += 1
            continue
        if code:
            out.append(line[:-1])
        body, at = _indented(lines, at + 1)
        if code or (section and section[1] == "Example"):
            out += ["", "```text", *body, "```", ""]
        elif section and section[1] == "Returns":
            out += [f"Returns: {' '.join(part.strip() for part in body)}", ""]
        elif section:
            out += [
                *([""] if out and out[-1] else []),
                *(["Raises:", ""] if section[1] == "Raises" else []),
                *_items(body),
                "",
            ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip()


def _indented(lines: list[str], at: int) -> tuple[list[str], int]:
    body = []
    while at < len(lines) and (not lines[at].strip() or lines[at].startswith(" ")):
        body.append(lines[at])
        at += 1
    return textwrap.dedent("\n".join(body)).strip("\n").splitlines(), at


def _items(body: list[str]) -> list[str]:
    items: list[str] = []
    for line in body:
        if line.startswith(" "):
            items[-1] += f" {line.strip()}"
        elif line.strip():
            name, _, words = line.partition(": ")
            items.append(f"- `{name}`: {words}")
    return items


# ---------------------------------------------------------------- errors


def errors_page() -> str:
    """The tree of errors, with the SQLSTATE of those that the stored functions raise."""
    said = [
        MADE,
        "# Errors\n",
        (
            "Every error is a `PgflowError`. Those with a code are raised by the stored functions "
            "under that SQLSTATE, so SQL sees them too. "
            "A message says what happened, to which run or step, and what to do next.\n"
        ),
        "| error | SQLSTATE | |\n|---|---|---|",
    ]
    said += [
        f"| {'· ' * depth}`{cls.__name__}` | {_code(cls)} | {_sentence(cls)} |"
        for cls, depth in _tree(errors.PgflowError, 0)
    ]
    said.append(
        "\nThe dots show what is derived from what: `except InvalidArgument` catches `NotStorable` "
        "too, and `except SetupError` all that follow it.\n\n"
        "What a step raises is rebuilt in the workflow as itself where its class is a builtin, or "
        "is named in the step's `raises=` or the app's "
        "`errors=`; else it is a `StepFailed`. What a workflow raises is the `__cause__` of the "
        "`RunFailed` that `result()` raises.\n\n"
        "The exit codes of the command line are in [its page](../cli.md#exit-codes).\n"
    )
    return "\n".join(said)


def _tree(cls: type, depth: int) -> list[tuple[type, int]]:
    own = [v for v in vars(errors).values() if inspect.isclass(v) and v.__bases__[0] is cls]
    return [(cls, depth), *(found for child in own for found in _tree(child, depth + 1))]


def _code(cls: type) -> str:
    code = vars(cls).get("sqlstate")
    return f"`{code}`" if code else ""


def _sentence(cls: type) -> str:
    first = (inspect.getdoc(cls) or "").split("\n\n")[0]
    return " ".join(first.replace("``", "`").split())


# ---------------------------------------------------------------- rules of the lint

PARTS_OF_RULES = {
    "PF1": (
        "What a replay cannot repeat",
        (
            "In workflow code: the functions under `@workflow`, and what they use of the same module. "
            "Bodies of steps may do all of this."
        ),
    ),
    "PF2": ("How code flows around calls", "In workflow code too."),
    "PF3": ("What is declared", "Wherever it is declared."),
    "PF9": (
        "Comments to the check",
        "A comment `# pgflow: ignore[PF101]` on the line of a finding allows it.",
    ),
}


def rules_page() -> str:
    """Every rule of `pgflow check`, with a module that breaks it and one that does not."""
    said = [
        MADE,
        "# Rules of pgflow check\n",
        (
            "[Check workflow code](../how-to/check-workflows.md) says how to use it. A code never "
            "changes its meaning. Of each rule: what goes wrong, what to do, a module with a finding "
            "and one without.\n"
        ),
        "| code | |\n|---|---|",
    ]
    said += [
        f"| [{rule.code}](#{rule.code.lower()}-{rule.title.lower().replace(' ', '-')}) | "
        f"{rule.title} |"
        for rule in lint.RULES
    ]
    for prefix, (title, words) in PARTS_OF_RULES.items():
        said += [f"\n## {title}\n\n{words}"]
        said += [_rule(rule) for rule in lint.RULES if rule.code.startswith(prefix)]
    return "\n".join(said) + "\n"


def _rule(rule: lint.Rule) -> str:
    blocks = [
        f"```python\n# {rule.code.lower()}_{name}.py\n{text}```"
        for name, text in (("bad", rule.bad), ("good", rule.good))
    ]
    return f"\n### {rule.code} {rule.title}\n\n{_capital(rule.why)}. {_capital(rule.instead)}.\n\n{blocks[0]}\n\nWithout a finding:\n\n{blocks[1]}"


def _capital(text: str) -> str:
    return (
        text
        if "(" in text.split(maxsplit=1)[0] or text.startswith(("pgflow", "asyncio"))
        else text[0].upper() + text[1:]
    )


# ---------------------------------------------------------------- SQL

VERBS = """
select p.proname, pg_get_function_identity_arguments(p.oid), pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), obj_description(p.oid),
  array(select r.rolname::text from pg_roles r where r.rolname ~ '^pgflow_(client|worker|operator|approver|speaker)$' and has_function_privilege(r.rolname, p.oid, 'execute') order by 1)
from pg_proc p where p.pronamespace = 'pgflow'::regnamespace and p.proname !~ '_$' order by p.proname
"""
RELATIONS = """
select c.relname, obj_description(c.oid),
  array(select a.attname::text || chr(9) || format_type(a.atttypid, a.atttypmod) || chr(9) || coalesce(col_description(c.oid, a.attnum), '')
        from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped order by a.attnum)
from pg_class c where c.relnamespace = 'pgflow'::regnamespace and c.relkind = any(%s) and not c.relispartition
  and not (c.relkind = 'v' and starts_with(c.relname, 'own_')) order by c.relname
"""


def sql_page(conn: psycopg.Connection[Any]) -> str:
    """Views, functions, tables and kinds of units, from the catalog and its comments."""
    said = [
        MADE,
        "# SQL\n",
        (
            "Everything is in the schema `pgflow`. Views may be read by all roles but two; functions are "
            "granted as shown; no role may use a table directly, "
            "and are here for those who want to understand. See "
            "[roles](../how-to/managed-postgres.md#roles). Each view with a column `tenant` has "
            "another, `own_NAME`, with the same columns and the rows of the "
            "[session's tenants](../how-to/tenants.md).\n"
        ),
        "## Views\n",
    ]
    said += [_relation(*row) for row in conn.execute(RELATIONS, (["v"],))]
    said.append("## Functions for applications\n")
    verbs = list(conn.execute(VERBS))
    public = [verb for verb in verbs if set(verb[5]) - {"pgflow_worker"}]
    said += [_function(*verb) for verb in public]
    said.append(
        "## Functions of workers\n\nGranted to `pgflow_worker` only, and subject to change: the "
        "library calls them.\n"
    )
    said += [
        f"- `{name}`: {words}"
        for name, _, _, _, words, roles in verbs
        if roles == ["pgflow_worker"]
    ]
    said.append("\n## Tables\n")
    said += [_relation(*row) for row in conn.execute(RELATIONS, (["r", "p"],))]
    said.append(
        "## Kinds of units\n\nWhat `timeline` shows as `event`. A kind that ends its call is its "
        "outcome.\n\n| event | ends its call | |\n|---|---|---|"
    )
    said += [
        f"| `{name}` | {'yes' if ends else ''} | {words} |"
        for name, ends, words in conn.execute(_kinds(conn))
    ]
    return "\n".join(said) + "\n"


def _kinds(conn: psycopg.Connection[Any]) -> LiteralString:
    columns = [
        name
        for (name,) in conn.execute(
            "select attname from pg_attribute where attrelid = 'pgflow.unit_kind'::regclass and "
            "attnum > 0 order by attnum"
        )
    ]
    assert columns[:3] == ["kind", "name", "is_terminal"], columns
    return "select name, is_terminal, written_by from pgflow.unit_kind order by name"


def _relation(name: str, words: str | None, columns: list[str]) -> str:
    rows = [column.split("\t") for column in columns]
    lines = "\n".join(f"| `{column}` | {kind} | {said} |" for column, kind, said in rows)
    return f"### `{name}`\n\n{words}.\n\n| column | type | |\n|---|---|---|\n{lines}\n"


def _function(
    name: str, _identity: str, arguments: str, result: str, words: str, roles: list[str]
) -> str:
    taken = re.sub(r"::[a-z []+\]?(?=,|$)", "", re.sub(r"(?:, )?OUT .*", "", arguments))
    given = ", ".join(re.findall(r"OUT (\w+ [^,]+)", arguments)) or result
    return f"### `{name}`\n\n`{name}({taken})` → `{given}`\n\n{words}. For {', '.join(f'`{role}`' for role in roles)}.\n"
