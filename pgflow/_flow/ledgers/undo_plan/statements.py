"""Lineage: the tables that one SQL statement reads and writes, derived from its text before it
runs.

It is made for statements that no person has reviewed, so it lists what is allowed. A statement is
refused for any part that is not listed here, for any function that is not known to be free of side
effects, and for any table without its schema, since a search path could resolve the name elsewhere.
The text that runs is not the input but the parsed statement, written out again with every name in
quotes. This parser reads both alike, and the server has nothing to guess. Since a parser may change
a value while it reads it, both texts must also hold the same strings and numbers.

Triggers, cascades, views, partitions and inheritance do not show in the text. They are found where
the statement runs, by the locks that it takes: ``sql/ledgers/plan.sql``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

MAX_CHARS = 16_384
"""A longer statement is refused unread."""

MAX_TOKENS = 2_000
"""Most words and signs of a statement; one of more is refused before it is parsed."""

MAX_DEPTH = 8
"""Brackets that nest deeper are refused before they are parsed."""

MAX_TYPE_DEPTH = 3
"""Most levels of types inside each other:
the parser reads the inside as two things, at every level.
"""

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
        reads: Every other table that it names.
    """

    text: str
    writes: frozenset[Table]
    reads: frozenset[Table]


_PLAIN = re.compile(r"[a-z_][a-z0-9_]*\Z")
_PART = r'(?:"(?:[^"\0]|"")+"|[A-Za-z_\x80-\U0010ffff][\w$]*)'
_TABLE = re.compile(rf"({_PART})\.({_PART})\Z")


def _shown(name: str) -> str:
    return name if _PLAIN.match(name) else '"' + name.replace('"', '""') + '"'


def _folded(name: str) -> str:
    """A name without quotes, as the server reads it: only A to Z become small."""
    return "".join(chr(ord(c) + 32) if "A" <= c <= "Z" else c for c in name)


def table_named(text: str) -> Table:
    """Return a table from its SQL name, such as ``shop.orders`` or ``shop."Orders"``.

    Raises:
        ValueError: The name lacks its schema, or the server would not take it unchanged.
    """
    found = _TABLE.match(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"a table needs its schema, as in shop.orders, not {text!r}")
    schema, name = (
        part[1:-1].replace('""', '"') if part[0] == '"' else _folded(part)
        for part in found.groups()
    )
    if max(len(schema.encode()), len(name.encode())) > MAX_NAME_BYTES:
        raise ValueError(
            f"a name in {text!r} is longer than {MAX_NAME_BYTES} bytes, which the server would cut "
            "off"
        )
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
    "Select From Where Join Group Having Order Ordered Limit Offset Distinct With CTE TableAlias "
    "Alias Subquery Values Tuple Union Except Intersect Table Schema Column Identifier Star "
    "Literal Boolean Null Var Paren And Or Not EQ NEQ GT GTE LT LTE Is In Between Like ILike "
    "NullSafeEQ NullSafeNEQ Exists Any All Add Sub Mul Div Mod Neg DPipe Case If Cast DataType "
    "DataTypeParam Array JSONExtract JSONExtractScalar JSONPath JSONPathRoot JSONPathKey "
    "JSONPathSubscript Returning OnConflict Whens When"
)

_FUNCTIONS = _words(
    "Coalesce Nullif Greatest Least Lower Upper Trim Length Substring Concat ConcatWs Abs Round "
    "Ceil Floor Count Sum Avg Min Max CurrentTimestamp CurrentDate"
)
"""Built-in functions that only compute, as the parser calls them.
Any other is refused, whoever wrote it.
"""

_RESERVED = _words(
    "all analyse analyze and any array as asc asymmetric both case cast check collate column "
    "constraint create current_catalog current_date current_role current_time current_timestamp "
    "current_user default deferrable desc distinct do else end except false fetch for foreign "
    "from grant group having in initially intersect into lateral leading limit localtime "
    "localtimestamp not null offset on only or order placing primary references returning select "
    "session_user some symmetric system_user table then to trailing true union unique user using "
    "variadic when where window with"
)
"""Words that are no name to the server unless quoted or behind a dot,
even where the parser takes them for one.
"""

_ANGLED = _words("ARRAY LIST LOWCARDINALITY MAP NESTED NULLABLE OBJECT RANGE STRUCT")
"""Kinds of tokens that the parser may take for a type with others between < and >."""

_OF_THE_SYSTEM = re.compile(r"pg_|information_schema\Z|pgflow\Z")


def read_statement(text: str) -> Statement:
    """Parse one statement and find the tables that it reads and writes.

    Args:
        text: SQL of Postgres: one INSERT, UPDATE, DELETE or MERGE, perhaps with CTEs, or a SELECT
            whose CTEs write.

    Raises:
        UnreadableSql: It is anything else, cannot be read without doubt, or holds what may have
            effects that cannot be seen.
    """
    values = _values(text)
    tree = _parsed(text)
    nodes = list(tree.walk())
    for node in nodes:
        _check(node)
    known = {cte.alias for cte in nodes if type(cte).__name__ == "CTE"}
    targets = {id(target): _table(target) for target in _targets(nodes)}
    others = [node for node in nodes if type(node).__name__ == "Table" and id(node) not in targets]
    reads = frozenset(_read_from(node) for node in others if not _is_cte(node, known))
    if not targets:
        raise UnreadableSql("it writes nothing")
    written = _written_out(tree)
    if _values(written) != values:
        raise UnreadableSql(
            "a string or number in it reads differently when it is written out again"
        )
    return Statement(written, frozenset(targets.values()), reads)


def _values(text: str) -> Counter[str]:
    """The strings and numbers of a text; refuses one that would take long to parse."""
    import sqlglot  # which takes longer to import than all the rest, and is needed by few
    from sqlglot.errors import SqlglotError

    if not isinstance(text, str) or len(text) > MAX_CHARS or "\0" in text:
        raise UnreadableSql(f"it is not a text of at most {MAX_CHARS} characters")
    try:
        tokens: list[Any] = sqlglot.tokenize(text, dialect="postgres")
    except (SqlglotError, ValueError, IndexError) as error:
        raise UnreadableSql(f"it cannot be read as SQL ({type(error).__name__})") from None
    if len(tokens) > MAX_TOKENS:
        raise UnreadableSql(f"it has more than {MAX_TOKENS} words and signs")
    _check_depth(tokens)
    return Counter(
        _value(*pair)
        for pair in zip([None, *tokens], tokens, strict=False)
        if _kind(pair[1]).endswith(("STRING", "NUMBER"))
    )


def _value(before: Any, token: Any) -> str:
    """A string or number as it is compared: ``.5``, which is two tokens, is 0.5."""
    is_fraction = _kind(token) == "NUMBER" and _kind(before) == "DOT"
    return f"{_kind(token)} {'0.' if is_fraction else ''}{token.text}"


def _kind(token: Any) -> str:
    return "" if token is None else str(token.token_type.name)


@cache
def _type_words() -> tuple[frozenset[str], frozenset[str]]:
    """The kinds of tokens that the parser may take for a type, and the words that it does so even
    with in quotes.
    """
    from sqlglot.dialects.dialect import Dialect

    dialect = Dialect.get_or_raise("postgres")
    kinds = frozenset(kind.name for kind in dialect.parser_class.TYPE_TOKENS) - {
        "IDENTIFIER",
        "VAR",
    }
    return kinds, frozenset(
        word for word, kind in dialect.tokenizer_class.KEYWORDS.items() if kind.name in kinds
    )


def _check_depth(tokens: list[Any]) -> None:
    """Refuse nesting that takes the parser exponential time, and names that run into a number."""
    kinds, words = _type_words()
    is_type: list[bool] = []  # for each open bracket: True if a type name precedes it
    before: Any = None
    for token in tokens:
        kind = _kind(token)
        if kind == "L_BRACKET" and _kind(before) == "R_BRACKET":
            raise UnreadableSql("it holds ][, where one dimension must do")
        if kind in ("L_PAREN", "L_BRACKET", "L_BRACE"):
            is_type.append(_kind(before) in kinds or _is_word(before, words))
        elif kind in ("R_PAREN", "R_BRACKET", "R_BRACE") and is_type:
            is_type.pop()
        elif kind == "LT" and _kind(before) in _ANGLED:
            raise UnreadableSql(
                f"it holds {before.text}<, which no type of Postgres is written with"
            )
        elif (
            _kind(before) == "NUMBER"
            and kind != "NUMBER"
            and before.end + 1 == token.start
            and token.text[:1].isidentifier()
        ):
            raise UnreadableSql(
                f"it holds {before.text}{token.text}, which is neither a number nor a name"
            )
        if len(is_type) > MAX_DEPTH:
            raise UnreadableSql(f"its brackets nest deeper than {MAX_DEPTH}")
        if sum(is_type) > MAX_TYPE_DEPTH:
            raise UnreadableSql(
                f"its types nest deeper than {MAX_TYPE_DEPTH}, as in array[array[...]]"
            )
        before = token


def _is_word(token: Any, words: frozenset[str]) -> bool:
    return _kind(token) in ("IDENTIFIER", "VAR") and str(token.text).upper() in words


def _parsed(text: str) -> Any:
    """The tree of the one statement in a text, its names as the server reads them,
    each marked as quoted.
    """
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        trees = sqlglot.parse(text, dialect="postgres")
    except (
        SqlglotError,
        RecursionError,
        ValueError,
        AttributeError,
        TypeError,
        IndexError,
        KeyError,
    ) as error:
        raise UnreadableSql(f"it cannot be read as SQL ({type(error).__name__})") from None
    if len(trees) != 1 or trees[0] is None:
        raise UnreadableSql(
            f"it is {len(trees)} statements, not one" if len(trees) > 1 else "it is empty"
        )
    tree = trees[0]
    for node in tree.walk():
        if type(node).__name__ == "Identifier":
            _settle_name(node)
    return tree


def _settle_name(node: Any) -> None:
    """Replace an identifier by the name that the server would read, in quotes.

    Raises:
        UnreadableSql: The server would read no name at all.
    """
    name = str(node.this)
    if not node.args.get("quoted"):
        name = _folded(name)
        is_dotted = node.arg_key == "this" and any(
            node.parent.args.get(part) for part in ("table", "db")
        )
        if name in _RESERVED and not is_dotted:
            raise UnreadableSql(
                f"it has {name} where a name could stand, which must then be quoted"
            )
    node.set("this", name)
    node.set("quoted", True)


def _written_out(tree: Any) -> str:
    """The statement as text again, which must be read as the same statement."""
    import sqlglot
    from sqlglot.errors import SqlglotError

    try:
        text: str = tree.sql(dialect="postgres", comments=False)
        again: list[Any] = sqlglot.parse(text, dialect="postgres")
        is_same = (
            len(again) == 1
            and again[0] == tree
            and again[0].sql(dialect="postgres", comments=False) == text
        )
    except (SqlglotError, RecursionError, ValueError, AttributeError, TypeError) as error:
        raise UnreadableSql(f"it cannot be written out again ({type(error).__name__})") from None
    if not is_same:
        raise UnreadableSql("it reads differently when it is written out again")
    return text


def _check(node: Any) -> None:
    """Refuse parts that are not listed."""
    kind = type(node).__name__
    if kind in _WRITES:
        strange = [name for name, value in node.args.items() if value and name not in _WRITES[kind]]
        if strange:
            raise UnreadableSql(
                f"{kind.upper()} has a clause that is not known: {', '.join(strange)}"
            )
    elif kind == "Anonymous":
        raise UnreadableSql(
            f"it calls {node.name}(), which is not known to be without side effects"
        )
    elif kind not in _PARTS and kind not in _FUNCTIONS:
        raise UnreadableSql(f"it holds {kind}, which is not allowed here")
    elif kind == "DataType" and getattr(node.this, "name", "") == "USERDEFINED":
        raise UnreadableSql("it casts to a type that is not built in")
    elif kind == "Var" and not re.fullmatch(r"[A-Za-z ]+", str(node.this)):
        raise UnreadableSql("it holds a word that is not known")
    elif kind == "With" and node.args.get("recursive"):
        raise UnreadableSql("it is recursive, so nothing in it says when it ends")
    elif kind == "CTE" and node.alias.startswith("pg_"):
        raise UnreadableSql("a name that begins with pg_ belongs to the system")


def _targets(nodes: list[Any]) -> Iterator[Any]:
    """The tables that statements write, as they stand in the tree."""
    for node in nodes:
        kind = type(node).__name__
        if kind not in _WRITES or type(node.parent).__name__ == "When":
            # A branch of MERGE writes MERGE's table.
            continue
        if kind in ("Update", "Delete") and not node.args.get("where"):
            raise UnreadableSql(f"{kind.upper()} without WHERE would touch every row")
        target = node.this
        if type(target).__name__ == "Schema":
            target = target.this
        has_more = any(
            value and name not in ("this", "db", "alias", "only")
            for name, value in target.args.items()
        )
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


def _is_cte(node: Any, known: set[str]) -> bool:
    return type(node.this).__name__ == "Identifier" and not node.db and node.name in known


def _read_from(node: Any) -> Table:
    """Return the table that a statement reads; refuse one of the system's."""
    table = _table(node)
    if _OF_THE_SYSTEM.match(table.schema):
        raise UnreadableSql(f"it reads {table}, which belongs to the system")
    return table
