"""Parts that all screens have: an application with a backend, repeated reads, and one line for the
user on what went wrong.

It asks one small question every two seconds, and only for what is seen. If the database does not
answer, the screen shows that above the old rows, and reads everything again once it answers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from time import monotonic
from typing import ClassVar, TypeVar, cast

import psycopg
from rich.text import Text
from textual.app import App
from textual.binding import Binding, BindingType
from textual.css.query import NoMatches
from textual.screen import Screen
from textual.widgets import Static

from pgflow import inspect
from pgflow.app import AsyncApp
from pgflow.console.backend import Backend, Unreachable
from pgflow.console.orders import Person
from pgflow.console.output import printable, shown
from pgflow.errors import PgflowError
from pgflow.texts import hide_secrets

T = TypeVar("T")

ASKING_SECONDS = 5.0
"""Time for one question, after which the database counts as one that cannot be asked."""
ORDER_SECONDS = 10.0
"""Time limit of an order. After it, the outcome of the order is unknown."""

SILENT = (*Unreachable, TimeoutError, OSError)
"""Errors of a database that cannot be asked just now."""
EXPECTED = (*SILENT, PgflowError, psycopg.Error)
"""Errors that a person can do something about, or wait for the end of."""


class ImpatientBackend(Backend):
    """A backend that gives up soon when the database does not answer: the user shall hear of it."""

    def __init__(self, app: AsyncApp, seconds: float = ASKING_SECONDS) -> None:
        super().__init__(app)
        self._seconds = seconds

    async def ask(self, question: inspect.Question[T]) -> T:
        """Ask the database."""
        async with asyncio.timeout(self._seconds):
            return await super().ask(question)


def is_silent(error: BaseException) -> bool:
    """Return True if the database cannot be asked just now."""
    return isinstance(error, SILENT) and not isinstance(error, psycopg.errors.QueryCanceled)


def explain(error: BaseException) -> str:
    """Return a line for an error."""
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return shown(
            f"{error.diag.message_primary}: the role of this connection is too low. Looking needs "
            "pgflow_auditor, orders pgflow_operator, answers to gates pgflow_approver"
        )
    if isinstance(error, psycopg.errors.QueryCanceled):
        return "This took the database too long"
    if is_silent(error):
        return "No answer from the database"
    if isinstance(error, psycopg.Error):
        message = error.diag.message_primary or str(error)
        return shown(hide_secrets(f"The database refused: {message}"))
    return shown(hide_secrets(str(error)))


def explain_order(error: BaseException) -> str:
    """Return a line for an error of an order: one that had no answer may have been done."""
    if is_silent(error):
        return "No answer from the database: it may have been done. Look before you say it again"
    return explain(error)


TICK_SECONDS = 2.0
CLOCK_SECONDS = 60.0


class Clock:
    """The database's clock, read now and then and followed by our own."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._base: datetime | None = None
        self._read_at = 0.0

    async def read(self) -> datetime:
        """Ask for the time."""
        self._base, self._read_at = await self._backend.ask(inspect.database_now()), monotonic()
        return self._base

    async def now(self) -> datetime:
        """Return the time; ask for it if that is long ago."""
        passed = monotonic() - self._read_at
        if self._base is None or passed > CLOCK_SECONDS:
            return await self.read()
        return self._base + timedelta(seconds=passed)


class Station(App[None]):
    """The application.

    Attributes:
        backend: Backend that answers questions and takes orders.
        person: Person who gives orders; None if read-only.
        database: Name of the database.
        clock: Its clock.
        tick_seconds: Time between two looks.
    """

    CSS = """
    #head, #pulse, #tabs, #keys { height: 1; }
    #keys { background: $boost; color: $text-muted; }
    #trouble { height: auto; color: $error; text-style: bold; display: none; }
    #note { height: auto; color: $success; display: none; }
    DataTable { height: 1fr; }
    VerticalScroll { height: 1fr; }
    """
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self,
        backend: Backend,
        person: Person | None,
        database: str = "",
        tick_seconds: float = TICK_SECONDS,
    ) -> None:
        super().__init__()
        self.backend = backend
        self.person = person
        self.database = database
        self.clock = Clock(backend)
        self.tick_seconds = tick_seconds


class Live(Screen[None]):
    """A screen that is read again and again while it is seen.

    Attributes:
        ticks: Number of looks so far.
        is_asked: True if it must be read now.
    """

    BINDINGS: ClassVar[list[BindingType]] = [Binding("r", "again", "now"), Binding("q", "back")]

    def __init__(self) -> None:
        super().__init__()
        self.ticks = 0
        self.is_asked = True
        self._wanted = asyncio.Event()
        self._silent_since: datetime | None = None

    @property
    def top(self) -> Station:
        """The application."""
        return cast("Station", self.app)

    async def show(self) -> None:
        """Read what is shown, and show it."""
        raise NotImplementedError

    def on_mount(self) -> None:
        """Begin to look."""
        self.run_worker(self._look_on(), exclusive=True)

    def look_soon(self) -> None:
        """Read it now."""
        self.is_asked = True
        self._wanted.set()

    on_screen_resume = on_resize = action_again = look_soon

    def action_back(self) -> None:
        """Leave."""
        self.app.exit()

    async def _look_on(self) -> None:
        while True:
            self._wanted.clear()
            if self.is_current:
                with suppress(NoMatches):  # it is being left
                    await self._look()
            with suppress(TimeoutError):
                async with asyncio.timeout(self.top.tick_seconds):
                    await self._wanted.wait()

    async def _look(self) -> None:
        try:
            await self.show()
        except EXPECTED as error:
            if self.is_attached:
                self._tell_trouble(error)
        else:
            self.ticks, self.is_asked = self.ticks + 1, False
            self._silent_since = None
            self._line("trouble", "")

    def _tell_trouble(self, error: BaseException) -> None:
        """Show what is wrong. Everything is read again once that is over."""
        self.is_asked = True
        line = explain(error)
        if is_silent(error):
            self._silent_since = self._silent_since or datetime.now().astimezone()
            line += f" since {self._silent_since:%H:%M:%S}: what you see is from before. Asking on"
        self._line("trouble", line.rstrip(".") + ".")

    def _line(self, name: str, text: str) -> None:
        line = self.query_one(f"#{name}", Static)
        line.display = bool(text)
        line.update(Text(printable(text)))

    def _keys(self, pairs: Sequence[tuple[str, str]]) -> None:
        line = Text(no_wrap=True, overflow="ellipsis")
        for key, words in pairs:
            line.append(key, style="bold").append(f" {words}  ")
        self.query_one("#keys", Static).update(line)

    def _head(self, title: str) -> None:
        who = "looks only" if self.top.person is None else f"as {self.top.person.name}"
        line = Text(no_wrap=True, overflow="ellipsis")
        line.append(printable(title), style="bold")
        line.append(printable(f"  {self.top.database}  {who}"), style="dim")
        self.query_one("#head", Static).update(line)
