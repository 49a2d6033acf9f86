"""Pages: a run, gate or debt in full, with the keys of its orders and links."""

from __future__ import annotations

from typing import ClassVar

from rich.console import Group
from rich.text import Text
from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.widgets import Static

from pgflow_cli.look.output import printable
from pgflow_cli.top.asking import Ask
from pgflow_cli.top.live import Live
from pgflow_cli.top.stories import Story, StoryReader
from pgflow_cli.top.views import Place

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
