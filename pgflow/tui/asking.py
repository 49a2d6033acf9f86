"""The dialog before an order: what it does, the command that it stands for, and its fields.

It opens once per order. A refusal appears in place, and what was typed stays.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Static, TextArea

from pgflow.console.backend import Backend
from pgflow.console.orders import BoundOrder, Field
from pgflow.console.output import printable
from pgflow.tui.live import EXPECTED, ORDER_SECONDS, explain_order


class Ask(ModalScreen[str]):
    """A question before an order; its answer are the words for what was done, or nothing."""

    CSS = """
    Ask { align: center middle; }
    Ask > VerticalScroll { width: 90%; max-width: 110; height: auto; max-height: 95%;
      border: round $primary; padding: 0 1; background: $surface; }
    Ask Input { height: 1; border: none; background: $boost; }
    Ask TextArea { height: 6; border: none; background: $boost; }
    Ask .label { color: $text-muted; }
    Ask #command { margin: 1 0 0 0; }
    Ask #refused { color: $error; height: auto; }
    Ask Horizontal { height: auto; }
    Ask Button { height: 1; min-width: 16; border: none; margin: 0 2 0 0; }
    Ask Button:focus { text-style: bold reverse; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+s", "do", priority=True),
        Binding("escape", "leave"),
    ]

    def __init__(self, order: BoundOrder, backend: Backend, who: str) -> None:
        super().__init__()
        self._order = order
        self._backend = backend
        self._who = who
        self._is_under_way = False

    def compose(self) -> ComposeResult:
        """Make the form."""
        with VerticalScroll(can_focus=False) as box:
            box.border_subtitle = "^s does it, Esc leaves it"
            yield Label(Text(self._order.title, style="bold"))
            yield Static(Text(self._order.says))
            for field in self._order.fields:
                yield Label(Text(field.label), classes="label")
                yield _widget(field)
            yield Static(id="command")
            yield Static(id="refused")
            with Horizontal():
                yield Button("Do it", id="do")
                yield Button("Leave it", id="leave")

    def on_mount(self) -> None:
        """Begin at the first field, or at the way out."""
        self.show_command()
        first = self._order.fields[0].name if self._order.fields else None
        self.query_one(f"#field-{first}" if first else "#leave").focus()

    def typed(self) -> dict[str, str]:
        """Return what was typed, by the names of fields."""
        return {
            field.name: self.query_one(f"#field-{field.name}", TextArea).text
            if field.is_long
            else self.query_one(f"#field-{field.name}", Input).value
            for field in self._order.fields
        }

    def show_command(self) -> None:
        """Show the command and the statement for what is typed."""
        typed = self.typed()
        self.query_one("#command", Static).update(
            Text.assemble(
                ("$ ", "dim"),
                printable(self._order.command(typed)),
                "\n",
                ("=> ", "dim"),
                printable(self._order.sql(typed)),
                "\n",
                (printable(f"It is recorded under the name {self._who}."), "dim"),
            )
        )

    on_input_changed = on_text_area_changed = show_command

    def on_input_submitted(self) -> None:
        """Go on to the next field: only the button, or its key, does it."""
        self.focus_next()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Do it, or leave it."""
        if event.button.id == "do":
            self.action_do()
        else:
            self.action_leave()

    def action_leave(self) -> None:
        """Do nothing."""
        if not self._is_under_way:
            self.dismiss("")

    def action_do(self) -> None:
        """Do it, once."""
        if not self._is_under_way:
            self._is_under_way = True
            self.run_worker(self._do(), exit_on_error=True)

    async def _do(self) -> None:
        typed = self.typed()
        refused = self.query_one("#refused", Static)
        refused.update("")
        try:
            async with asyncio.timeout(ORDER_SECONDS):
                await self._order.give(self._backend, typed)
        except EXPECTED as error:
            refused.update(Text(explain_order(error)))
            refused.scroll_visible()
        else:
            self.dismiss(self._order.past)
        finally:
            self._is_under_way = False


def _widget(field: Field) -> Input | TextArea:
    if field.is_long:
        return TextArea(field.value, id=f"field-{field.name}", tab_behavior="focus")
    return Input(field.value, id=f"field-{field.name}", select_on_focus=False)
