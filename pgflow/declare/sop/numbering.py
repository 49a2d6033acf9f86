"""The numbers of steps: ``1. Setup``, ``0.5. Load``, ``Step 4A: Generate``, ``2.1 Analyze``, and
the ids of nodes made of them.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from typing import Final

from pgflow.declare.sop.page import bare

_NUMBERED: Final = re.compile(
    r"(?:(?:step|phase|stage)\s+)?"
    r"(?P<number>\d{1,4}(?:\.\d{1,4})*(?:(?:[A-Za-z](?:-[A-Za-z0-9]{1,4})?)?(?=\s*[.:)]|\s+[-\u2013\u2014])|(?=\s|$)))"
    r"\s*[.:)]?(?:\s+[-\u2013\u2014])?(?:\s+|$)(?P<title>.*)",
    re.IGNORECASE,
)
_TITLE_LIMIT: Final = 40


@dataclass(frozen=True, slots=True)
class Numbered:
    """A heading that has a number. ``number`` is as written: a step 0.5 is neither 0, 5 nor 1."""

    number: str
    title: str


def read_number(title: str) -> Numbered | None:
    """Return the number and the rest of a heading, or None if it has no number."""
    found = _NUMBERED.fullmatch(bare(title))
    return Numbered(found["number"], bare(found["title"])) if found else None


def order_of(number: str) -> tuple[tuple[int, str], ...]:
    """Return the sort key of a number: ``0.5`` before ``1``,
    ``9`` before ``10``, ``4A`` before ``4B``.
    """
    return tuple(
        (int(part), "") if part.isdigit() else (0, part.casefold())
        for part in re.findall(r"\d+|[A-Za-z]+", number)
    )


def slug(title: str) -> str:
    """Return a title as file names have it: ``Explore Phase`` as ``explore-phase``."""
    latin = unicodedata.normalize("NFKD", title).encode("ascii", "ignore").decode().lower()
    return re.sub(r"[^a-z0-9]+", "-", latin).strip("-")


def node_id(number: str, title: str) -> str:
    """Return the id of a step's node: ``step-2-explore-phase``. Titles outside the Latin alphabet
    leave the number alone.
    """
    words = slug(title)
    if len(words) > _TITLE_LIMIT:
        words = words[: _TITLE_LIMIT + 1].rpartition("-")[0] or words[:_TITLE_LIMIT]
    return "-".join(filter(None, ["step", number.lower().replace(".", "-"), words]))
