"""Output of a command: a table for people, JSON and CSV for machines.

A table is the default, on a terminal, in a pipe and in a log alike: ``pgflow list | head`` shows
the rows that ``pgflow list`` shows. ``--json`` is an array with one row a line, so that both ``jq``
and ``grep`` work; a single thing is one object. What is not the answer - notes, progress, questions
- goes to standard error, so that the answer can always be piped.
"""

from __future__ import annotations

import csv
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from pgflow import inspect

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group, RenderableType
    from rich.text import Text

Row = Any
"""A typed row of `pgflow.inspect`, or a mapping."""

STYLES = {
    "queued": "cyan", "running": "yellow", "waiting": "blue", "paused": "magenta",
    "stuck": "bold red", "completed": "green", "failed": "red", "cancelled": "bright_black",
}  # fmt: skip


class Form(StrEnum):
    """The form of an answer."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


@dataclass(frozen=True)
class Column:
    """A column of a table for people.

    Attributes:
        title: Its heading.
        show: The cell of a row: the name of a value of it, or a function of it that returns a text
            or anything that `plain` takes.
        from_width: Left out on terminals that are narrower than this.
        right: True if it is aligned to the right.
        most: No wider than this; longer cells end in an ellipsis.
        takes_rest: True if it has all the room that the others leave.
        is_copied: True if it is cut last, since people copy it into a command.
    """

    title: str
    show: str | Callable[[Row], Any]
    from_width: int = 0
    right: bool = False
    most: int = 60
    takes_rest: bool = False
    is_copied: bool = False

    def cell(self, row: Row) -> Text:
        """Return the cell of a row."""
        from rich.text import Text

        found = value_of(row, self.show) if isinstance(self.show, str) else self.show(row)
        return found if isinstance(found, Text) else plain(found)


_SPEC = re.compile(
    r"(?:(?P<title>\w+)=)?(?P<name>\w+)(?P<form>[#~>!])?(?P<room>[/*]\d+)?(?:@(?P<width>\d+))?"
)


def table(spec: str, now: datetime | None = None, **shows: Callable[[Row], Any]) -> list[Column]:
    """Return the columns of a table, each of which is a word of `spec`.

    A word is the name of a value of a row, as in ``lag``, perhaps with another heading:
    ``OLDEST=oldest_at``. In capitals, it is a heading whose cells a function of `shows` makes. What
    may follow: ``#`` for a count, pale if it is zero; ``~`` for JSON; ``>`` to align to the right,
    as numbers are; ``!`` for a name to copy, which is cut last; ``/40`` for its greatest width;
    ``*120`` for that and all the room that is left; ``@100`` to leave it out on narrower terminals.

    Args:
        spec: The words.
        now: The time on the database's clock, where moments are shown as ages; else as they are.
        **shows: Functions by their headings.
    """
    return [_column(_SPEC.fullmatch(word), now, shows) for word in spec.split()]


def _column(
    found: re.Match[str] | None, now: datetime | None, shows: Mapping[str, Callable[[Row], Any]]
) -> Column:
    assert found is not None
    name, form, room = found["name"], found["form"], found["room"] or ""
    made = shows.get(name)
    return Column(
        (found["title"] or name).replace("_", " ").upper(),
        made or (lambda row: _shown(value_of(row, name), name, form, now)),
        int(found["width"] or 0),
        form in (">", "#"),
        int(room[1:] or 60),
        room.startswith("*"),
        form == "!",
    )


def _shown(value: Any, name: str, form: str | None, now: datetime | None) -> Any:
    """Return a value of a row as its cell."""
    from decimal import Decimal

    from rich.text import Text

    if form == "#":
        return Text(f"{value:,}", STYLES.get(name, "") if value else "bright_black")
    if form == "~":
        return short_json(value)
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, datetime):
        return Text(age(value, now), justify="right") if now else when(value)
    if isinstance(value, (int, float)):
        return Text(str(value), justify="right")
    if isinstance(value, Decimal):
        return Text(amount(value), justify="right")
    if name in ("status", "before"):
        return styled_status(value)
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def value_of(row: Row, name: str) -> Any:
    """Return a value of a row; None if it has none of the name."""
    return row.get(name) if isinstance(row, Mapping) else getattr(row, name, None)


def as_object(row: Row, names: Iterable[str] = ()) -> dict[str, Any]:
    """Return the values of a row for machines: these in this order, else all."""
    if isinstance(row, Mapping) and not names:
        return dict(row)
    return {name: value_of(row, name) for name in names or vars(row)}


def console(*, error: bool = False) -> Console:
    """Return the console to draw on: standard output,
    or standard error for all that is not the answer.
    """
    from rich.console import Console
    from rich.segment import Segment

    class Harmless(Console):
        """Console that removes control sequences from all text, so that data cannot drive the
        terminal.
        """

        def render(
            self, renderable: RenderableType, options: ConsoleOptions | None = None
        ) -> Iterator[Segment]:
            for segment in super().render(renderable, options):
                yield (
                    segment if segment.control else Segment(printable(segment.text), segment.style)
                )

    out = Harmless(stderr=error, highlight=False, markup=False, emoji=False, soft_wrap=False)
    if not out.is_terminal and not os.environ.get("COLUMNS"):
        out.width = LOG_WIDTH  # a log and a mail have no width of their own
    return out


def say(*parts: str | tuple[str, str] | Text, error: bool = False) -> None:
    """Print parts, each perhaps with its style, as text that the terminal wraps."""
    from rich.text import Text

    console(error=error).print(Text.assemble(*parts), soft_wrap=True)


def note(text: str) -> None:
    """Print something that is not the answer."""
    print(printable(text), file=sys.stderr, flush=True)


def shown(text: str) -> str:
    """Return untrusted text on one line, without control sequences."""
    return " ".join(printable(text, keep="").split())


def printable(text: str, *, keep: str = "\n") -> str:
    """Return the same on as many lines as it has."""
    if text.isprintable() or (keep and all(line.isprintable() for line in text.split("\n"))):
        return text
    from pgflow import texts

    return texts.printable(text, keep=keep)


GAP = 2
LEAST = 10
LOG_WIDTH = 140
"""Width of tables that go to no terminal."""


def make_table(columns: Sequence[Column], rows: Iterable[Row], width: int) -> Group:
    """Rows as a table without lines, which stays readable when it is copied: one row, one line.
    Rich's own table wraps and measures each cell again, which takes ten times as many calls.
    """
    from rich.console import Group
    from rich.text import Text

    shown = [column for column in columns if width >= column.from_width]
    cells = [[column.cell(row) for column in shown] for row in rows]
    widths = _widths(shown, cells, width, 1)
    rights = [
        column.right or any(row_cells[number].justify for row_cells in cells)
        for number, column in enumerate(shown)
    ]
    heads = [Text(column.title, "bold") for column in shown]
    lines = (zip(line, widths, rights, strict=True) for line in (heads, *cells))
    return Group(*(_line(line) for line in lines))


def _line(cells: Iterable[tuple[Text, int, bool]]) -> Text:
    """Return a line of a table from its cells, the width of each, and whether it is at the right
    of that.
    """
    from rich.text import Text

    line, space = Text(no_wrap=True, overflow="crop"), 0
    for cell, room, right in cells:
        cell.truncate(room, overflow="ellipsis")
        free = room - cell.cell_len
        if space := space + (free if right else 0):
            line.append(" " * space)
        line.append_text(cell)
        space = GAP + (0 if right else free)
    return line.append(" " * (space - GAP))


def column_widths(columns: Sequence[Column], rows: Iterable[Row], width: int) -> list[int]:
    """Return the widths of the columns of a table, in characters."""
    return _widths(columns, [[column.cell(row) for column in columns] for row in rows], width)


def _widths(
    columns: Sequence[Column], cells: list[list[Text]], width: int, narrowest: int = LEAST
) -> list[int]:
    """Return each column as wide as its cells; what is left, or missing, falls to the one that
    takes the rest, then to the last of the widest, and at the end to those that are copied. None
    gets below `LEAST`, or below the narrowest if there is no other way.
    """
    widths = [
        min(column.most, max([len(column.title), *(row[number].cell_len for row in cells)]))
        for number, column in enumerate(columns)
    ]
    too_much = sum(widths) + GAP * (len(widths) - 1) - width
    rest = next((number for number, column in enumerate(columns) if column.takes_rest), None)
    if rest is not None:
        widths[rest] = min(widths[rest], max(LEAST, widths[rest] - max(too_much, 0)))
    least = LEAST
    while (too_much := sum(widths) + GAP * (len(widths) - 1) - width) > 0:
        wide = [number for number, room in enumerate(widths) if room > least]
        if not wide and least == narrowest:
            break
        if not wide:
            least = narrowest
            continue
        widest = max(wide, key=lambda one: (not columns[one].is_copied, widths[one], one))
        widths[widest] = max(least, widths[widest] - max(1, too_much // 4))
    return widths


def print_rows(
    form: Form,
    columns: Sequence[Column],
    rows: Sequence[Row],
    *,
    names: Sequence[str] | type = (),
    empty: str = "nothing found",
) -> None:
    """Print rows.

    Args:
        form: Table, JSON or CSV.
        columns: Columns of the table.
        rows: Rows to print.
        names: Values of a row in JSON and CSV, or the class that has them; all that it has if not
            given.
        empty: Sentence for a person if there are no rows.
    """
    names = names_of(names) if isinstance(names, type) else names
    if form is Form.TABLE and rows:
        out = console()
        out.print(make_table(columns, rows, out.width))
    elif form is Form.TABLE:
        note(empty)
    else:
        has_own = rows and isinstance(rows[0], Mapping)
        objects = [as_object(row, () if has_own else names) for row in rows]
        if form is Form.JSON:
            print_json_rows(objects)
        else:
            print_csv(list(objects[0]) if objects else list(names), objects)


def names_of(kind: Any) -> tuple[str, ...]:
    """Return the attributes of the rows of a class, in their order."""
    return tuple(kind.__dataclass_fields__)


def print_json_rows(rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as a JSON array, one a line."""
    print("[" + ",".join(f"\n{dump(row)}" for row in rows) + ("\n]" if rows else "]"), flush=True)


def print_csv(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Rows as CSV with a heading. Programs get texts as they are, a terminal gets them harmless."""
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    show = printable if sys.stdout.isatty() else str
    writer.writerows([_cell(row.get(name), show) for name in names] for row in rows)


def _cell(value: Any, show: Callable[[str], str]) -> Any:
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, str):
        return show(value)
    return value.isoformat() if isinstance(value, (date, datetime)) else dump(value).strip('"')


def print_one(form: Form, row: Mapping[str, Any], text: str | Callable[[], RenderableType]) -> None:
    """Print one thing: as an object, a CSV of one row, or as people read it."""
    if form is Form.JSON:
        print(dump(row, indent=2 if sys.stdout.isatty() else None), flush=True)
    elif form is Form.CSV:
        print_csv(list(row), [row])
    elif isinstance(text, str):
        print(shown(text), flush=True)
    else:
        console().print(text())


def dump(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON; times as ISO 8601, other types as text. Invisible characters are
    escaped.
    """
    text = json.dumps(value, ensure_ascii=False, default=_plain, indent=indent)
    if all(line.isprintable() for line in text.split("\n")):
        return text
    return "".join(
        char if char == "\n" or char.isprintable() else json.dumps(char)[1:-1] for char in text
    )


def _plain(value: Any) -> Any:
    if isinstance(value, (datetime, date)):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    return str(value)


# ---------------------------------------------------------------- words for people


def many(number: int, noun: str) -> str:
    """``1 run``, ``2 runs``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def progress(noun: str, words: str) -> Callable[[int], None]:
    """Return a function that tells a person at a terminal how many things are done."""

    def tell(number: int) -> None:
        if sys.stderr.isatty():
            note(f"{many(number, noun)} {words}")

    return tell


def labelled(labels: Mapping[str, str] | None) -> str:
    """Return labels as they are typed."""
    return " ".join(f"{name}={value}" for name, value in (labels or {}).items())


def either(words: Sequence[str]) -> str:
    """Return words as a choice: ``reuse, repeat or compensate``."""
    return f"{', '.join(words[:-1])} or {words[-1]}" if len(words) > 1 else "".join(words)


def amount(value: Decimal | None) -> str:
    """Return an amount for a person, without trailing zeros; empty for None."""
    return "" if value is None else f"{value.normalize():,f}"


def styled_status(status: str) -> Text:
    """Return a status in its colour."""
    from rich.text import Text

    return Text(status, style=STYLES.get(status, ""))


def plain(value: Any) -> Text:
    """Any value as text that means nothing to rich, on one line."""
    from rich.text import Text

    return Text("" if value is None else shown(str(value)))


def short_json(value: Any) -> Text:
    """Return a value as JSON on one line."""
    return plain("" if value is None else dump(inspect.readable(value)))


def age(since: datetime | None, now: datetime) -> str:
    """Return the time since something, in short: ``42s``, ``3m``, ``2h``, ``5d``."""
    return "" if since is None else duration((now - since).total_seconds())


def until(moment: datetime | None, now: datetime, over: str) -> str:
    """Return the time until a moment, as ``in 5m``, or other words if it has passed."""
    seconds = 0.0 if moment is None else (moment - now).total_seconds()
    return "" if moment is None else f"in {duration(seconds)}" if seconds > 0 else over


def duration(seconds: float) -> str:
    """Return a duration in its two or three leading digits: ``12 ms`` is ``12ms``, ``80 s`` is
    ``80s``.
    """
    seconds = max(seconds, 0.0)
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    for size, unit, limit in ((1, "s", 100), (60, "m", 100), (3600, "h", 48), (86400, "d", None)):
        if limit is None or seconds / size < limit - 0.5:
            return f"{seconds / size:.0f}{unit}"
    raise AssertionError("unreachable")


def when(moment: datetime | None) -> str:
    """Return a moment as people write it down, in UTC."""
    return "" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
