"""Makes `sql/runs/protocol.sql` of `pgflow/_model/protocol.py`: the functions that read rows by name.

Each is one SQL statement without settings of its own, so that the planner puts it into the query
that calls it: a column that is not used costs nothing, and the plan is that of the positions.
"""

from __future__ import annotations

from types import NoneType
from typing import Annotated, Any, NotRequired, Required, get_args, get_origin, get_type_hints

from pgflow._model.protocol import READERS, Reader

HEAD = """\
-- Rows that cross between a worker and the database, read by name. Made by tools/protocol.py from
-- pgflow/_model/protocol.py, which describes each kind, its fields, their units and their writers.
--
-- The planner inlines each function into the query that calls it, for which it must be stable, have no settings and
-- not be numbered by its caller (`with ordinality`): so a reader numbers its rows itself.

"""
WIDTH = 120
SUFFIXES = {"timestamptz": "_us", "interval": "_seconds"}


def sql_file() -> str:
    """Return the text of the file."""
    return HEAD + "\n".join(_function(name, reader) for name, reader in READERS.items())


def _function(name: str, reader: Reader) -> str:
    columns = _columns(reader)
    declared = _filled("returns table (", [f"{column} {kind}" for column, kind, _ in columns], ")")
    read = _filled("  select ", [f"{value} as {column}" for column, _, value in columns])
    number = " with ordinality" if reader.numbered else ""
    alias = f"{number} as r (e, n)" if reader.numbered else " as r (e)"
    said = (reader.row.__doc__ or "").split("\n", maxsplit=1)[0].rstrip(".").split(". ")[0]
    what = "Objects" if reader.of_objects else "Rows"
    return (
        f"create or replace function pgflow.{name}(list {reader.wire})\n"
        f"{declared}\nlanguage sql\nstable\nbegin atomic\n{read}\n"
        f"  from {reader.wire}_array_elements(list){alias};\nend;\n"
        f"comment on function pgflow.{name}({reader.wire})\n"
        f"  is '{what} of the protocol as columns: {said[0].lower()}{said[1:]}';\n"
    )


def _columns(reader: Reader) -> list[tuple[str, str, str]]:
    """Return name, type and expression of each column."""
    columns = [(reader.numbered, "int", "r.n::int")] if reader.numbered else []
    if reader.whole:
        columns.append((reader.whole, reader.wire, "r.e"))
    names = get_type_hints(reader.row)
    for n, (name, (column, kind, is_optional)) in enumerate(
        zip(names, columns_of(reader.row), strict=True)
    ):
        slot = f"'{name}'" if reader.of_objects else str(n)
        columns.append((column, kind, _value(slot, kind, reader, is_optional=is_optional)))
    return columns


def columns_of(row: type) -> list[tuple[str, str, bool]]:
    """Return column, type in SQL, and whether it may be null, of each field of a row."""
    optional = getattr(row, "__optional_keys__", ())
    found = []
    for name, hint in get_type_hints(row, include_extras=True).items():
        kind, may_be_null = _type_of(hint)
        column = name.removesuffix(SUFFIXES.get(kind, "\0"))
        found.append((column, kind, may_be_null or name in optional))
    return found


def _type_of(hint: Any) -> tuple[str, bool]:
    """Return the type in SQL, and whether it may be null."""
    if get_origin(hint) in (NotRequired, Required):
        (hint,) = get_args(hint)
    parts = [hint] if get_origin(hint) is Annotated else list(get_args(hint))
    (kind,) = [part.__metadata__[0] for part in parts if part is not NoneType]
    return kind, NoneType in parts


def _value(slot: str, kind: str, reader: Reader, *, is_optional: bool) -> str:
    """Return the expression that reads a slot."""
    text, element = f"r.e->>{slot}", f"r.e->{slot}"
    match kind:
        case "text":
            return text
        case "jsonb":
            of_json = f"({element})::jsonb" if reader.wire == "json" else element
            is_null_sent = is_optional and not reader.of_objects
            return f"nullif({of_json}, 'null')" if is_null_sent else of_json
        case "timestamptz":
            number = text if is_optional else element
            return f"timestamptz 'epoch' + ({number})::bigint * interval '1 microsecond'"
        case "interval":
            return f"({text})::float8 * interval '1 second'"
        case "bigint[]":
            return f"array(select f::bigint from {reader.wire}_array_elements_text({element}) f)"
        case "json" | '"char"':
            return f"({text})::{kind}"
        case _ if is_optional or reader.wire == "json":
            return f"({text})::{kind}"
        case _:
            return f"({element})::{kind}"


def _filled(start: str, parts: list[str], end: str = "") -> str:
    """Return parts with commas between them, on lines of at most ``WIDTH`` columns."""
    lines = [start + parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 3 > WIDTH:
            lines[-1] += ","
            lines.append(f"  {part}")
        else:
            lines[-1] += f", {part}"
    return "\n".join(lines) + end
