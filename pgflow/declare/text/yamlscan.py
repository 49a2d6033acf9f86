"""The scanner under `pgflow.declare.text.yamlfile`: ruamel.yaml's, with the rules on white space
and indentation that Bun's has.

ruamel.yaml refuses tabs between tokens, control characters anywhere and (as YAML 1.1 did) takes no
heed of indentation inside quotes and brackets. Bun does the opposite of each. Which of the two is
right matters little; which files are workflows does.
"""

from __future__ import annotations

import re
from typing import Any

from ruamel.yaml.reader import Reader as _Reader
from ruamel.yaml.scanner import Scanner as _Scanner

_LINE_ENDS = "\n\r\0"
_FIRST_TOKENS = 2
"""Fewer tokens than these have been read at the beginning of a text, where only the stream itself
has begun.
"""
_BLOCK = re.compile(r"[-?](?:\s|$)|[^\s\[{\"'#][^#]*?:(?:\s|$)|(?:\"[^\"]*\"|'[^']*')\s*:(?:\s|$)")


class WrongYaml(Exception):
    """Something that the original's parser refuses; lines and columns count from 1."""

    def __init__(self, message: str, line: int, column: int, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.line, self.column, self.hint = message, line, column, hint


class Reader(_Reader):
    """A reader to which every character is one."""

    def check_printable(self, data: Any) -> None:
        """Takes control characters as they are; NUL, the only one that ends a text, has been
        refused before.
        """


class Scanner(_Scanner):
    """A scanner that takes tabs for white space between tokens,
    and indentation seriously everywhere.
    """

    after_dash = False

    def scan_to_next_token(self) -> None:
        """Goes on to the next token, over white space, comments and line ends."""
        reader = self.reader
        if reader.index == 0 and reader.peek() == "\ufeff":
            reader.forward()
        starts_line, after_dash = reader.column == 0, self.after_dash
        self.after_dash = False
        while True:
            tab = self._skip_blanks()
            if tab is not None and (
                starts_line or self._starts_line() or (after_dash and self._starts_block())
            ):
                comment = self.tokens_taken + len(self.tokens) < _FIRST_TOKENS
                self._refuse_tab(*tab, harmless=_LINE_ENDS + "#" * comment)
            if reader.peek() == "#":
                self._heed_comment()
                after_dash = False
                while reader.peek() not in _LINE_ENDS:
                    reader.forward()
            if not self.scan_line_break():
                return
            starts_line = True
            if not self.flow_level:
                self.allow_simple_key = True

    def _heed_comment(self) -> None:
        reader = self.reader
        if reader.pointer and reader.buffer[reader.pointer - 1] not in " \t\n\r\ufeff":
            raise WrongYaml(
                "Unexpected character",
                reader.line + 1,
                reader.column + 1,
                "A comment needs a blank before its '#'.",
            )

    def _skip_blanks(self) -> tuple[int, int] | None:
        """Goes over blanks and tabs. Answers where the first tab was."""
        reader = self.reader
        tab = None
        while (char := reader.peek()) in " \t":
            if char == "\t" and tab is None:
                tab = (reader.line, reader.column)
            reader.forward()
        return tab

    def _starts_block(self) -> bool:
        """Return True if the tab would indent what comes next: a mapping or a sequence inside an
        item, on its line.
        """
        reader = self.reader
        end = min(
            place for end in _LINE_ENDS if (place := reader.buffer.find(end, reader.pointer)) >= 0
        )
        return _BLOCK.match(reader.buffer, reader.pointer, end) is not None

    def _refuse_tab(self, line: int, column: int, *, harmless: str) -> None:
        """A tab indents nothing: not in a block,
        and inside brackets only what blanks have indented enough.
        """
        if self.reader.peek() in harmless:
            return
        if not self.flow_level:
            raise WrongYaml(
                "Tab characters cannot be used as indentation",
                line + 1,
                column + 1,
                "Indent with blanks.",
            )
        if column <= self.indent:
            raise WrongYaml("Unexpected token", line + 1, column + 1, "Indent with blanks.")

    def unwind_indent(self, column: Any) -> None:
        """Closes the blocks that end here; inside brackets, no line may begin left of what they
        belong to.
        """
        if self.flow_level:
            self._heed_indentation(
                "Lines inside brackets must be indented more than the key they belong to."
            )
            return
        super().unwind_indent(column)

    def _heed_indentation(self, hint: str) -> None:
        reader = self.reader
        if reader.column > self.indent or reader.peek() in "]}\0" or not self._starts_line():
            return
        raise WrongYaml("Unexpected token", reader.line + 1, reader.column + 1, hint)

    def _starts_line(self) -> bool:
        reader = self.reader
        start = reader.buffer.rfind("\n", 0, reader.pointer) + 1
        return not reader.buffer[start : reader.pointer].strip(" \t")

    def fetch_block_entry(self) -> None:
        """Fetch a dash. The text after it on its line is indented by the space between them."""
        super().fetch_block_entry()
        self.after_dash = True

    def fetch_block_scalar(self, style: Any) -> None:
        """Fetch a text of lines, which begins right of its key."""
        line, column, starts_line = (
            self.reader.line + 1,
            self.reader.column + 1,
            self._starts_line(),
        )
        super().fetch_block_scalar(style)
        if starts_line and column - 1 <= self.indent:
            raise WrongYaml(
                "Unexpected token",
                line,
                column,
                "A text of lines must begin right of the key that it belongs to.",
            )

    def scan_block_scalar_indentation(self) -> Any:
        """Scan the indentation of a text of lines: that of its first line that is not blank. No
        blank line before that is wider.
        """
        reader = self.reader
        breaks: list[str] = []
        widest, end_mark = 0, reader.get_mark()
        while reader.peek() in " \r\n":
            if reader.peek() == " ":
                reader.forward()
                continue
            widest = max(widest, reader.column)
            breaks.append(self.scan_line_break())
            end_mark = reader.get_mark()
        if reader.column <= self.indent or reader.peek() == "\0":
            return breaks, widest, end_mark
        if widest > reader.column:
            hint = "A blank line before the first line of this text has more blanks than it."
            raise WrongYaml("Unexpected character", reader.line + 1, reader.column + 1, hint)
        return breaks, reader.column, end_mark

    def scan_flow_scalar_breaks(self, double: Any, start_mark: Any) -> Any:
        """Return the line ends inside quotes; the lines after them must be indented like everything
        else.
        """
        chunks = super().scan_flow_scalar_breaks(double, start_mark)
        reader = self.reader
        if reader.column <= self.indent and reader.peek() != "\0":
            hint = "Lines inside quotes must be indented more than the key they belong to."
            raise WrongYaml("Unexpected character", reader.line + 1, reader.column + 1, hint)
        return chunks
