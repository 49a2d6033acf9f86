"""README and docs are plain: short sentences about things, with one thought each. The figures are those that Oban's and psycopg's guides keep."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest
import servers

WHAT_PER_100 = 5
SEMICOLONS_PER_100 = 8
MEDIAN_WORDS = 17

GENERATED = {"python.md", "sql.md", "errors.md", "checks.md", "GUARANTEES.md"}
"""From docstrings, comments and the record of the proof."""

PAGES = [
    servers.REPOSITORY / "README.md",
    *sorted(page for page in (servers.REPOSITORY / "docs").rglob("*.md") if page.name not in GENERATED),
]


def sentences(markdown: str) -> list[str]:
    """The sentences of a page: no code, no headings, no tables."""
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.DOTALL | re.MULTILINE)
    found = []
    for block in re.split(r"\n\s*\n|\n(?=[-*] |\d+\. |\|)", text):
        prose = re.sub(r"^([-*]|\d+\.) ", "", block.strip())
        if not prose or prose.startswith(("#", "|", "<", ">")):
            continue
        prose = re.sub(r"`[^`]*`", "x", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose)).replace("**", "")
        found += [s for s in re.split(r"(?<=[.!?:])\s+(?=[A-Zx])", prose.replace("\n", " ")) if " " in s]
    return found


def complaints(said: list[str]) -> list[str]:
    """Which of the three bounds these sentences exceed; a short page may have one of the first two each."""
    found = []
    for name, pattern, bound in (("what", r"\bwhat\b", WHAT_PER_100), ("semicolons", ";", SEMICOLONS_PER_100)):
        having = [s for s in said if re.search(pattern, s, re.IGNORECASE)]
        if sum(len(re.findall(pattern, s, re.IGNORECASE)) for s in said) > max(1, bound * len(said) / 100):
            found.append(f"more than {bound} {name} in 100 sentences: {having}")
    if said and statistics.median(len(s.split()) for s in said) > MEDIAN_WORDS:
        found.append(f"half of the sentences have more than {MEDIAN_WORDS} words")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(servers.REPOSITORY).as_posix())
def test_a_page_is_plain(page: Path):
    assert complaints(sentences(page.read_text())) == []


def test_wordy_pages_are_found():
    page = "# What\n\n```python\nwhat; what\n```\n\n" + "It says what it does; what for. " * 3
    assert [c.split(" in ")[0] for c in complaints(sentences(page))] == ["more than 5 what", "more than 8 semicolons"]
    assert complaints(["word " * 30]) == ["half of the sentences have more than 17 words"]
    assert complaints(sentences("- Start it.\n- Stop it; what now?\n")) == []
