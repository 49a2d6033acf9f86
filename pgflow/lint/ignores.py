"""Comments that allow a finding: ``# pgflow: ignore[PF101]``, several codes with commas between
them, and a reason behind.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field

from pgflow.lint.findings import Finding

_COMMENT = re.compile(r"#\s*pgflow:\s*ignore\b(?:\[(?P<codes>[^\]]*)\])?", re.IGNORECASE)


@dataclass
class Ignore:
    """One such comment.

    Attributes:
        line: Number of the line.
        column: Its column in characters, from 1.
        codes: Codes that it names; empty if it names none.
        used: Those of the codes that have allowed something.
    """

    line: int
    column: int
    codes: tuple[str, ...]
    used: set[str] = field(default_factory=set)


class Ignores:
    """The comments of a module.

    Args:
        text: The module's text.
    """

    def __init__(self, text: str) -> None:
        self.comments = list(_comments(text)) if "ignore" in text.lower() else []

    def allow(self, finding: Finding) -> bool:
        """Return True if a comment on one of the lines of a finding names its code."""
        for comment in self.comments:
            if (
                finding.line <= comment.line <= max(finding.line, finding.last_line)
                and finding.code in comment.codes
            ):
                comment.used.add(finding.code)
                return True
        return False


def _comments(text: str) -> Iterator[Ignore]:
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and (match := _COMMENT.search(token.string)):
                codes = tuple(
                    code.strip().upper()
                    for code in (match["codes"] or "").split(",")
                    if code.strip()
                )
                yield Ignore(token.start[0], token.start[1] + match.start() + 1, codes)
    except (
        tokenize.TokenError,
        SyntaxError,
    ):  # the parser has had no objection; what it has found counts
        return
