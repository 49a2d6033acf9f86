"""The screens: views of all work, one at a time, and below each the keys that it takes; and pages:
a run, gate or debt in full, with the keys of its orders and links.
"""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from rich.console import Group
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import DataTable, Input, Label, Static

from pgflow import inspect
from pgflow.console.output import column_widths, printable
from pgflow.tui.asking import Ask
from pgflow.tui.live import Live, Station
from pgflow.tui.stories import Story, StoryReader
from pgflow.tui.views import VIEWS, Place, Rows, View, draw_pulse, read_pulse

STORY_TICKS = 5
"""Ticks after which a story is read again: it takes a dozen questions."""


class Page(Live):
    """A run, gate or debt in full, with its orders."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back")]

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._at = place
        self._story: Story | None = None

    def compose(self) -> ComposeResult:
        """Make the lines and the text."""
        yield Static(id="head")
        yield Static(id="tabs")
        with VerticalScroll():
            yield Static(id="story")
        yield Static(id="note")
        yield Static(id="trouble")
        yield Static(id="keys")

    def on_mount(self) -> None:
        """Say what comes."""
        self._head(" ".join(self._at))
        self._keys([("Esc", "back")])

    def action_back(self) -> None:
        """Go back to what led here."""
        self.app.pop_screen()

    async def show(self) -> None:
        """Read the story, every few ticks; between them only the time."""
        if not self.is_asked and self.ticks % STORY_TICKS:
            await self.top.clock.read()
            return
        now = await self.top.clock.now()
        reader = StoryReader(self.top.backend, self.top.person, now, max(40, self.size.width - 3))
        self._story = story = await reader.read(self._at)
        self.query_one("#story", Static).update(Group(*story.parts))
        self._draw_lines(story)

    def _draw_lines(self, story: Story) -> None:
        self._head(story.title)
        line = Text(no_wrap=True, overflow="ellipsis")
        for number, (words, _) in enumerate(story.links[:9], 1):
            line.append(f"{number} ", style="bold").append(printable(words)).append("  ")
        self.query_one("#tabs", Static).update(line)
        keys = [(order.key, order.title) for order in story.orders]
        self._keys([*keys, ("Esc", "back")])

    def on_key(self, event: events.Key) -> None:
        """Ask about an order, or follow a link."""
        story, person = self._story, self.top.person
        if story is None or event.character is None:
            return
        for order in story.orders:
            if order.key == event.character and person is not None:
                event.stop()
                self.app.push_screen(Ask(order, self.top.backend, person.name), self._ordered)
                return
        number = int(event.character) if event.character in "123456789" else 0
        if 0 < number <= len(story.links):
            event.stop()
            self.app.push_screen(Page(story.links[number - 1][1]))

    def _ordered(self, past: str | None) -> None:
        if past:
            self._line("note", past)
            self.look_soon()


PADDING = 4
PULSE_TICKS = 5
"""Ticks after which the pulse is read again: it looks through the newest runs."""
"""Cells of a table beside its columns: the padding at both ends, and a scroll bar."""


class Top(Station):
    """The application."""

    def on_mount(self) -> None:
        """Begin with what needs a person."""
        self.push_screen(Board())


class Board(Live):
    """The views, one at a time."""

    BINDINGS: ClassVar[list[BindingType]] = [
        *(Binding(str(number), f"view({number})") for number in range(1, len(VIEWS) + 1)),
        Binding("tab", "turn(1)", priority=True),
        Binding("shift+tab", "turn(-1)", priority=True),
        Binding("f", "filter"),
        Binding("slash", "find"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._number = 0
        self._status = ""
        self._places: list[Place | None] = []

    @property
    def view(self) -> View:
        """The view that is seen."""
        return VIEWS[self._number]

    def compose(self) -> ComposeResult:
        """Make the lines and the table."""
        yield Static(id="head")
        yield Static(id="pulse")
        yield Static(id="tabs")
        yield DataTable(cursor_type="row", zebra_stripes=False)
        yield Static(id="note")
        yield Static(id="trouble")
        yield Static(id="keys")

    def on_mount(self) -> None:
        """Begin with what needs a person."""
        self._draw_lines()

    async def show(self) -> None:
        """Read the view; of one that asks much, every few ticks only the time."""
        view, status = self.view, self._status
        if self.ticks % PULSE_TICKS == 0:
            pulse = await read_pulse(self.top.backend)
            self.query_one("#pulse", Static).update(draw_pulse(pulse, self.size.width))
        if not self.is_asked and self.ticks % view.every:
            await self.top.clock.read()
            return
        rows, now = [*await view.read(self.top.backend, status)], await self.top.clock.now()
        if (view, status) == (self.view, self._status):
            self._draw(rows, now)

    def _draw(self, rows: Rows, now: datetime) -> None:
        table = self.query_one(DataTable)
        width = self.size.width
        columns = [column for column in self.view.columns(now) if width >= column.from_width]
        widths = column_widths(columns, rows, width - PADDING)
        place = self._place()
        self._places = [self.view.place(row) for row in rows]
        with self.app.batch_update():
            top, cursor = table.scroll_y, table.cursor_row
            table.clear(columns=True)
            for column, cells in zip(columns, widths, strict=True):
                table.add_column(Text(column.title), width=cells)
            for row in rows:
                table.add_row(
                    *(
                        _cell(column.cell(row), cells, right=column.right)
                        for column, cells in zip(columns, widths, strict=True)
                    )
                )
            if place in self._places and place is not None:
                cursor = self._places.index(place)
            table.move_cursor(row=cursor, scroll=False)
            table.scroll_to(y=top, animate=False)
        self._line("note", "" if rows else self.view.empty)
        self._draw_lines()

    def _place(self) -> Place | None:
        """Return what the cursor is on."""
        row = self.query_one(DataTable).cursor_row
        return self._places[row] if 0 <= row < len(self._places) else None

    def _draw_lines(self) -> None:
        self._head("pgflow top")
        line = Text(no_wrap=True, overflow="ellipsis")
        for number, view in enumerate(VIEWS):
            title = view.title
            if view.name == "runs" and self._status:
                title += f" {self._status}"
            line.append(f"{number + 1} ", style="bold")
            line.append(title, style="reverse" if number == self._number else "").append("  ")
        self.query_one("#tabs", Static).update(line)
        keys = [("1-7", "view"), ("Enter", "open"), ("/", "find a run"), ("r", "now")]
        keys += [("f", "status")] if self.view.name == "runs" else []
        self._keys([*keys, ("q", "quit")])

    def _turn_to(self, number: int) -> None:
        self._number = number % len(VIEWS)
        self._places = []
        self.query_one(DataTable).clear(columns=True)
        self._line("note", "")
        self._draw_lines()
        self.look_soon()

    def action_view(self, number: int) -> None:
        """Turn to a view by its number."""
        self._turn_to(number - 1)

    def action_turn(self, by: int) -> None:
        """Turn to the next view, or to the one before."""
        self._turn_to(self._number + by)

    def action_filter(self) -> None:
        """Show runs of the next status only."""
        if self.view.name == "runs":
            choices = ["", *inspect.STATUSES]
            self._status = choices[(choices.index(self._status) + 1) % len(choices)]
            self._turn_to(self._number)

    def action_find(self) -> None:
        """Open the run with a key."""
        self.app.push_screen(Find(), self._open_run)

    def _open_run(self, key: str | None) -> None:
        if key:
            self.app.push_screen(Page(("run", key)))

    def on_data_table_row_selected(self) -> None:
        """Open what the cursor is on."""
        place = self._place()
        if place is not None:
            self.app.push_screen(Page(place))
        elif self._places:
            self._line("note", "This has no page of its own: its action says what to do.")


class Find(ModalScreen[str]):
    """Asks for the key of a run."""

    CSS = """
    Find { align: center middle; }
    Find > VerticalScroll { width: 70; max-width: 90%; height: 5; border: round $primary;
      padding: 0 1; background: $surface; }
    Find Input { height: 1; border: none; background: $boost; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave")]

    def compose(self) -> ComposeResult:
        """Make the field."""
        with VerticalScroll(can_focus=False):
            yield Label("Key of a run")
            yield Input(id="key")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer with what was typed."""
        self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        """Answer nothing."""
        self.dismiss("")


def _cell(text: Text, cells: int, *, right: bool) -> Text:
    text.no_wrap = True
    text.truncate(cells, overflow="ellipsis")
    if right:
        text.justify = "right"
    return text
