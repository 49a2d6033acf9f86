"""Every code block of README and docs/ is run, every link leads somewhere, and the lists of pages
are complete.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING

import docskit
import pytest
import servers

if TYPE_CHECKING:
    from pathlib import Path


DOCS = servers.REPOSITORY / "docs"
HAVE_TESTS_OF_THEIR_OWN = {
    DOCS / "cli.md",
    DOCS / "session.md",
    DOCS / "how-to" / "pydantic-ai.md",
    DOCS / "how-to" / "claude-agent-sdk.md",
}
NEEDS = {
    DOCS / "coming-from/langgraph.md": "langgraph",
    DOCS / "how-to/langgraph.md": "langgraph",
    DOCS / "how-to/openai-agents.md": "agents",
    DOCS / "how-to/adk.md": "google.adk",
    DOCS / "how-to/crewai.md": "crewai",
}
"""Pages on frameworks that may not be installed: CI's step for adapters runs them."""
PAGES = docskit.pages()


def name_of(page: Path) -> str:
    return str(page.relative_to(servers.REPOSITORY))


@pytest.mark.full
@pytest.mark.alone  # some pages copy it
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page not in HAVE_TESTS_OF_THEIR_OWN and docskit.blocks(page)],
    ids=name_of,
)
def test_the_blocks_of_a_page_run_in_their_order(page: Path, dsn: str, tmp_path: Path) -> None:
    if page in NEEDS:
        pytest.importorskip(NEEDS[page], reason=f"{NEEDS[page]} is not installed")
    reader = docskit.Reader(dsn, tmp_path)
    reader.follow(page)
    assert reader.done == len(docskit.blocks(page))


@functools.cache
def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE
    )
    return {
        re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


def dead_links(page: Path) -> list[str]:
    """Return those targets of a page's links that are not there."""
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        if not re.match(r"https?://", target) and (
            not there.exists()
            or (anchor and there.suffix == ".md" and anchor not in anchors(there))
        ):
            dead.append(target)
    return dead


def test_every_link_leads_somewhere() -> None:
    found = {name_of(page): dead_links(page) for page in PAGES}
    assert {page: dead for page, dead in found.items() if dead} == {}


def test_every_page_is_found_from_the_index_the_site_and_llms_txt_and_they_name_no_other() -> None:
    pages = {str(page.relative_to(DOCS)) for page in PAGES if page.is_relative_to(DOCS)}
    site = set(re.findall(r'"([\w/-]+\.md)"', (servers.REPOSITORY / "zensical.toml").read_text()))
    index, llms = (
        set(re.findall(r"\]\(([\w/-]+\.\w+)\)", (DOCS / name).read_text()))
        for name in ("index.md", "llms.txt")
    )
    assert [link for link in index | llms if not (DOCS / link).exists()] == []
    assert (pages - site, pages - index - {"index.md"}, pages - llms - {"index.md"}) == (
        set(),
        set(),
        set(),
    )
