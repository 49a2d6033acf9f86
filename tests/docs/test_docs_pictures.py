"""Pictures in the documentation are made by a program, light and dark, and small."""

from __future__ import annotations

import re

import servers

DOCS = servers.REPOSITORY / "docs"
MAKER = servers.REPOSITORY / "tests" / "pictures.py"
PAGES = (*DOCS.rglob("*.md"), servers.REPOSITORY / "README.md")
MOST_BYTES = 150_000


def test_each_picture_is_made_by_the_program_and_small() -> None:
    shown = {
        (page.parent / target.partition("#")[0]).resolve()
        for page in PAGES
        for target in re.findall(r"!\[[^\]]+\]\(([^)\s]+)\)", page.read_text())
        if "://" not in target
    }
    there = {path.resolve() for path in (DOCS / "pictures").iterdir()}
    assert shown == there, (
        "each picture that is there is shown, and has words for who cannot see it"
    )
    names = re.findall(r'"([\w-]+)": "/', MAKER.read_text())
    made = {f"{name}-{shade}.webp" for name in names for shade in ("light", "dark")}
    assert {path.name for path in there} == made
    assert [path.name for path in there if path.stat().st_size > MOST_BYTES] == []
