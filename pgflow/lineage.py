"""What one SQL statement writes, read from its text before it runs.

It is made for statements that nobody has reviewed. So it knows what may stand in one, not what may not: a
statement is refused for any part that is not listed here, for any function that is not known to be free of
side effects, and for any table without its schema, since a search path could give that name to another.
What is run is not the text that came in but the one that was understood, written out again with every name
in quotes; the two are the same to this parser, and leave the server nothing to guess.

What no text shows - triggers, cascades, views, partitions, inheritance - is found where the statement runs,
by the locks that it takes: ``sql/plan.sql``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

MAX_CHARS = 16_384
"""A longer statement is refused unread."""

MAX_NAME_BYTES = 63
"""The server cuts longer names off, so that two could become one."""


class UnreadableSql(ValueError):
    """A statement that is refused; the message says why, in words that fit behind "refused:"."""


@dataclass(frozen=True, order=True)
class Table:
    """A table with its schema, as the server stores both names."""

    schema: str
    name: str

    def __str__(self) -> str:
        """As people write it, quoted where it must be."""
        return f"{_shown(self.schema)}.{_shown(self.name)}"


@dataclass(frozen=True)
class Statement:
    """A statement that was understood.

    Attributes:
        text: The statement, written out again: this is what may be run.
        writes: Every table that the statement itself inserts into, updates or deletes from.
    """

    text: str
    writes: frozenset[Table]


_PLAIN = re.compile(r"[a-z_][a-z0-9_]*\Z")
_PART = r'(?:"(?:[^"\0]|"")+"|[A-Za-z_\x80-\U0010ffff][\w$]*)'
_TABLE = re.compile(rf"({_PART})\.({_PART})\Z")


def _shown(name: str) -> str:
    return name if _PLAIN.match(name) else '"' + name.replace('"', '""') + '"'


def _folded(name: str) -> str:
    """A name without quotes, as the server reads it: only A to Z become small."""
    return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in name)


def table_named(text: str) -> Table:
    """A table from the way SQL writes it, as in ``shop.orders`` or ``shop."Orders"``.

    Raises:
        ValueError: It lacks its schema, or is no name that the server would take as it is.
    """
    found = _TABLE.match(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"a table is written with its schema, as in shop.orders, not {text!r}")
    schema, name = (part[1:-1].replace('""', '"') if part[0] == '"' else _folded(part) for part in found.groups())
    if max(len(schema.encode()), len(name.encode())) > MAX_NAME_BYTES:
        raise ValueError(f"a name in {text!r} is longer than {MAX_NAME_BYTES} bytes, which the server would cut off")
    return Table(schema, name)


# ---------------------------------------------------------------- what may stand in a statement

_WRITES = {
    "Insert": {"this", "expression", "conflict", "returning", "default", "with", "with_"},
    "Update": {"this", "expressions", "from", "from_", "where", "returning", "with", "with_"},
    "Delete": {"this", "using", "where", "returning", "with", "with_"},
    "Merge": {"this", "using", "on", "whens", "returning", "with", "with_"},
}
"""Statements that write, each with the clauses it may have."""

def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_PARTS = _words(
    "Select From Where Join Group Having Order Ordered Limit Offset Distinct With CTE TableAlias Alias Subquery Values Tuple "
    "Union Except Intersect Table Schema Column Identifier Star Literal Boolean Null Var Paren And Or Not EQ NEQ GT GTE LT LTE "
    "Is In Between Like ILike NullSafeEQ NullSafeNEQ Exists Any All Add Sub Mul Div Mod Neg DPipe Case If Cast DataType "
    "DataTypeParam Interval Array JSONExtract JSONExtractScalar JSONPath JSONPathRoot JSONPathKey JSONPathSubscript "
    "Returning OnConflict Whens When"
)

_FUNCTIONS = _words(
    "Coalesce Nullif Greatest Least Lower Upper Trim Length Substring Concat ConcatWs Abs Round Ceil Floor Count Sum Avg Min Max "
    "CurrentTimestamp CurrentDate"
)
"""Built-in functions that only compute, as the parser calls them. Any other is refused, whoever wrote it."""

_OF_THE_SYSTEM = re.compile(r"pg_|information_schema\Z|pgflow\Z")


def read_statement(text: str) -> Statement:
    """Reads one statement and finds what it writes.

    Args:
        text: SQL of Postgres: one INSERT, UPDATE, DELETE or MERGE, perhaps with CTEs, or a SELECT whose CTEs write.

    Raises:
        UnreadableSql: It is anything else, cannot be read without doubt, or holds what may have effects that cannot be seen.
    """
    tree = _parsed(text)
    nodes = list(tree.walk())
    for node in nodes:
        _check(node)
    known = {cte.alias for cte in nodes if type(cte).__name__ == "CTE"}
    targets = {id(target): _table(target) for target in _targets(nodes)}
    for node in nodes:
        if type(node).__name__ == "Table" and id(node) not in targets:
            _check_read(node, known)
    if not targets:
        raise UnreadableSql("it writes nothing")
    return Statement(_written_out(tree), frozenset(targets.values()))


def _parsed(text: str) -> Any:
    """The tree of the one statement in a text, its names as the server reads them, each marked as quoted."""
    import sqlglot  # which takes longer to import than all the rest, and is needed by few
    from sqlglot.errors import SqlglotError

    if not isinstance(text, str) or len(text) > MAX_CHARS or "\0" in text:
        raise UnreadableSql(f"it is not a text of at most {MAX_CHARS} characters")
    try:
        trees = sqlglot.parse(text, dialect="postgres")
    except (SqlglotError, RecursionError, ValueError, AttributeError, TypeError, IndexError, KeyError) as error:
        raise UnreadableSql(f"it cannot be read as SQL ({type(error).__name__})") from None
    if len(trees) != 1 or trees[0] is None:
        raise UnreadableSql(f"it is {len(trees)} statements, not one" if len(trees) > 1 else "it is empty")
    tree = trees[0]
    for node in tree.walk():
        if type(node).__name__ == "Identifier":
            name = str(node.this)
            node.set("this", name if node.args.get("quoted") else _folded(name))
            node.set("quoted", True)
    return tree


def _written_out(tree: Any) -> str:
    """The statement as text again, which must be read as the same statement."""
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        text: str = tree.sql(dialect="postgres", comments=False)
        again: list[Any] = sqlglot.parse(text, dialect="postgres")
        is_same = len(again) == 1 and again[0] == tree and again[0].sql(dialect="postgres", comments=False) == text
    except (SqlglotError, RecursionError, ValueError, AttributeError, TypeError) as error:
        raise UnreadableSql(f"it cannot be written out again ({type(error).__name__})") from None
    if not is_same:
        raise UnreadableSql("it reads differently when it is written out again")
    return text


def _check(node: Any) -> None:
    """Refuses what is not listed."""
    kind = type(node).__name__
    if kind in _WRITES:
        strange = [name for name, value in node.args.items() if value and name not in _WRITES[kind]]
        if strange:
            raise UnreadableSql(f"{kind.upper()} has a clause that is not known: {', '.join(strange)}")
    elif kind == "Anonymous":
        raise UnreadableSql(f"it calls {node.name}(), which is not known to be without side effects")
    elif kind not in _PARTS and kind not in _FUNCTIONS:
        raise UnreadableSql(f"it holds {kind}, which is not allowed here")
    elif kind == "DataType" and getattr(node.this, "name", "") == "USERDEFINED":
        raise UnreadableSql("it casts to a type that is not built in")
    elif kind == "Var" and not re.fullmatch(r"[A-Za-z ]+", str(node.this)):
        raise UnreadableSql("it holds a word that is not known")
    elif kind == "CTE" and node.alias.startswith("pg_"):
        raise UnreadableSql("a name that begins with pg_ belongs to the system")


def _targets(nodes: list[Any]) -> Iterator[Any]:
    """The tables that statements write, as they stand in the tree."""
    for node in nodes:
        kind = type(node).__name__
        if kind not in _WRITES or type(node.parent).__name__ == "When":  # a branch of MERGE writes MERGE's table
            continue
        if kind in ("Update", "Delete") and not node.args.get("where"):
            raise UnreadableSql(f"{kind.upper()} without WHERE would touch every row")
        target = node.this
        if type(target).__name__ == "Schema":
            target = target.this
        has_more = any(value and name not in ("this", "db", "alias", "only") for name, value in target.args.items())
        if type(target).__name__ != "Table" or has_more:
            raise UnreadableSql(f"what {kind.upper()} writes is not a table by its name")
        yield target


def _table(node: Any) -> Table:
    if type(node.this).__name__ != "Identifier":
        raise UnreadableSql("it uses a function as a table")
    if node.args.get("catalog"):
        raise UnreadableSql(f"{node.name} is named with a database")
    if not node.db:
        raise UnreadableSql(f"{node.name} lacks its schema")
    return Table(node.db, node.name)


def _check_read(node: Any, known: set[str]) -> None:
    """What is read must be of the application: nobody but the system reads the system's tables."""
    if type(node.this).__name__ == "Identifier" and not node.db and node.name in known:
        return
    if _OF_THE_SYSTEM.match(_table(node).schema):
        raise UnreadableSql(f"it reads {_table(node)}, which belongs to the system")
