"""``pgflow timeline``: what a run did and waited for, as a waterfall."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.database import Dsn, fetch_dicts, opened
from pgflow_cli.failures import Mistake
from pgflow_cli.history import MARK, RECOVERED, STEP, Entry, fold
from pgflow_cli.listing import WHY, database_now
from pgflow_cli.output import (
    GAP,
    AsCsv,
    AsJson,
    Column,
    Form,
    choose_form,
    column_widths,
    console,
    duration,
    make_table,
    plain,
    print_rows,
    shown,
    styled_status,
    when,
)
from pgflow_cli.selection import ENDED, Key, find_run

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    import psycopg
    from rich.console import RenderableType
    from rich.text import Text

_RUN = f"key, status, workflow, run_id, generation, created_at, finished_at, since, {WHY}"

_UNITS = """
select t.seq, t.call, t.event, t.name, t.at, t.recorded_at, t.due_at, t.payload, t.starts, t.token, t.is_inherited
from pgflow.timeline t where {condition} order by t.seq
"""

_UNIT_NAMES = ("seq", "call", "event", "name", "at", "is_inherited")
_UNIT_COLUMNS = [
    Column("UNIT", lambda row: plain(row["seq"]), right=True),
    Column("CALL", lambda row: plain(row["call"] or ""), right=True),
    Column("EVENT", lambda row: plain(row["event"].replace("_", " "))),
    Column("NAME", lambda row: plain(row["name"] or ""), takes_rest=True),
    Column("AT", lambda row: plain(when(row["at"])), from_width=90),
    Column("FROM", lambda row: plain("its origin" if row["is_inherited"] else ""), from_width=110),
]

NARROW = 100
"""Below so many columns a name gets less room, and the bars the rest."""


def timeline(
    key: Key,
    *,
    generation: Annotated[
        int | None, typer.Option(min=1, help="An earlier one of a run that was continued as new; else the newest.")
    ] = None,
    units: Annotated[bool, typer.Option("--units", help="The units of its journal, as they are numbered for fork and rewind.")] = False,
    as_json: AsJson = None,
    as_csv: AsCsv = False,
    dsn: Dsn = None,
) -> None:
    """Draws what a run did and waited for.

    Full bars are steps whose beginning is recorded; of reads and transactions only the end is, so their lighter bar
    begins with the entry before. Lines are waits, crosses failed attempts. "recovered" says that another worker went
    on from the journal.
    """
    form = choose_form(as_json=as_json, as_csv=as_csv)
    with opened(dsn) as connection:
        history = read_history(connection, key, generation)
    if units:
        print_rows(form, _UNIT_COLUMNS, [{name: unit[name] for name in _UNIT_NAMES} for unit in history.units])
    elif form is Form.TABLE:
        out = console()
        for part in draw(history, out.width, is_unicode=out.encoding.lower().startswith("utf")):
            out.print(part)
    else:
        names = list(Entry(0, "", "", history.now).as_row())
        print_rows(form, [], [entry.as_row() for entry in history.entries], names=names)


@dataclass(frozen=True)
class History:
    """A run, what it did, and what time it is in the database."""

    run: dict[str, Any]
    entries: list[Entry]
    now: datetime
    units: list[dict[str, Any]]

    @property
    def end(self) -> datetime:
        """Right edge of the picture: the end of the run, or now."""
        last = max((entry.ended_at or entry.began_at for entry in self.entries), default=self.run["created_at"])
        end = self.run["finished_at"] if self.run["status"] in ENDED else self.now
        return max(last, end)


def read_history(connection: psycopg.Connection[Any], key: str, generation: int | None = None) -> History:
    """Reads what is recorded of a run.

    Raises:
        Mistake: There is no such run, or no such generation of it.
    """
    run = find_run(connection, key, _RUN)
    if generation is not None and generation > run["generation"]:
        raise Mistake(f"run {key!r} has {run['generation']} generation{'s' if run['generation'] > 1 else ''}, not {generation}")
    wanted = generation or run["generation"]
    is_newest = wanted == run["generation"]
    condition = "t.run_id = %s" if is_newest else "t.key = %s and t.tenant = '' and t.generation = %s"
    units = fetch_dicts(connection, _UNITS.format(condition=condition), (run["run_id"],) if is_newest else (key, wanted))
    began = run["created_at"] if wanted == 1 or not units else units[0]["at"]
    if wanted < run["generation"] and units:
        run = {
            **run,
            "status": "continued",
            "generation": wanted,
            "finished_at": units[-1]["recorded_at"],
            "created_at": began,
            "why": None,
        }
    if units:
        run = {**run, "created_at": min(run["created_at"], units[0]["at"])}  # a part of the journal may be older than the run
    return History(run, fold(units, run["created_at"]), database_now(connection), units)


# ---------------------------------------------------------------- drawing


@dataclass(frozen=True)
class Marks:
    """Characters that bars are made of."""

    work: str = "█"
    guess: str = "▒"
    wait: str = "─"
    point: str = "◆"
    failure: str = "✗"
    open: str = "▸"


ASCII = Marks("#", "=", "-", "*", "x", ">")
_COLOURS = {"failed": "red", "abandoned": "red", "given up": "bright_black", "open": "yellow"}


def draw(history: History, width: int, *, is_unicode: bool = True) -> list[RenderableType]:
    """The picture: a line on the run, the bars, what is left to say."""
    begin, end = history.run["created_at"], history.end
    bars = Bars(begin, max((end - begin).total_seconds(), 0.001), Marks() if is_unicode else ASCII)
    rows = [{"entry": entry} for entry in history.entries]
    name_room = 24 if width < NARROW else 40
    columns = [
        Column("CALL", lambda row: plain(row["entry"].call or ""), right=True),
        Column("WHAT", lambda row: _what(row["entry"]), most=name_room),
        Column("AT", lambda row: plain("+" + duration((row["entry"].began_at - begin).total_seconds())), right=True),
        Column("TOOK", lambda row: plain(_took(row["entry"])), right=True),
        Column("TRIES", lambda row: plain(row["entry"].attempts or ""), right=True),
    ]
    bar_room = max(10, width - sum(column_widths(columns, rows, width)) - GAP * len(columns))
    columns.append(Column("", lambda row: bars.draw(row["entry"], bar_room, history.now), most=bar_room))
    return [_headline(history), "", make_table(columns, rows, width), *_errors(history.entries), *_tail(history)]


def _headline(history: History) -> RenderableType:
    from rich.text import Text

    run = history.run
    line = Text.assemble((shown(run["key"]), "bold"), "  ", shown(run["workflow"]), "  ")
    line.append_text(styled_status(run["status"]))
    generation = f", generation {run['generation']}" if run["generation"] > 1 else ""
    line.append(f"  started {when(run['created_at'])}, {duration((history.end - run['created_at']).total_seconds())} in all{generation}")
    return line


def _what(entry: Entry) -> Text:
    from rich.text import Text

    if entry.kind == MARK:
        if entry.name == RECOVERED:
            return Text(RECOVERED, style="bold magenta")
        return Text(f"· {entry.name}" + (f" ({entry.detail})" if entry.detail else ""), style="bright_black")
    prefix = {"timer": "sleep: ", "signal": "signal: ", "child": "child: "}.get(entry.kind, "")
    return Text((prefix if not entry.name.startswith("sleep") else "") + entry.name)


def _took(entry: Entry) -> str:
    if entry.kind == MARK:
        return ""
    return "…" if entry.ended_at is None else duration((entry.ended_at - entry.began_at).total_seconds())


@dataclass(frozen=True)
class Bars:
    """Draws entries on one scale of time.

    Attributes:
        begin: The left edge.
        seconds: Time that the picture covers.
        marks: Characters that bars are made of.
    """

    begin: datetime
    seconds: float
    marks: Marks

    def draw(self, entry: Entry, room: int, now: datetime) -> Text:
        """The bar of an entry, so many cells wide at most."""
        from rich.text import Text

        left = self._cell(entry.began_at, room)
        right = max(left, self._cell(entry.ended_at or now, room))
        if entry.kind == MARK:
            return Text(" " * left + self.marks.point, style="bright_black")
        cells = [self._fill(entry)] * (right - left + 1)
        for at, _ in entry.failures:
            cells[min(max(self._cell(at, room) - left, 0), len(cells) - 1)] = self.marks.failure
        if entry.ended_at is None:
            cells[-1] = self.marks.open
        style = _COLOURS.get(entry.status, "green" if entry.kind == STEP else "blue")
        bar = Text(" " * left)
        for cell in cells:
            bar.append(cell, style="bold red" if cell == self.marks.failure else style)
        return bar

    def _fill(self, entry: Entry) -> str:
        if entry.kind != STEP:
            return self.marks.wait
        return self.marks.work if entry.is_known else self.marks.guess

    def _cell(self, at: datetime, room: int) -> int:
        share = (at - self.begin).total_seconds() / self.seconds
        return min(room - 1, max(0, int(share * room)))


def _errors(entries: Sequence[Entry]) -> list[RenderableType]:
    """The failed attempts in words."""
    lines: list[RenderableType] = []
    for entry in entries:
        lines += [plain(f"call {entry.call} {entry.name}, try {number}: {error}") for number, (_, error) in enumerate(entry.failures, 1)]
    return ["", *lines] if lines else []


def _tail(history: History) -> list[RenderableType]:
    """Return the status of the run and the reason for it; nothing if it ended without one."""
    run = history.run
    if run["status"] in ENDED and not run["why"]:
        return []
    why = f": {run['why']}" if run["why"] else ""
    return ["", plain(f"{run['status']}{why}")]
