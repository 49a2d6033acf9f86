"""Every code block of README and docs/ is run, every link leads somewhere, and the lists of pages
are complete.
"""

from __future__ import annotations

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
    DOCS / "how-to/langgraph.md": "langgraph",
    DOCS / "how-to/openai-agents.md": "agents",
    DOCS / "how-to/adk.md": "google.adk",
    DOCS / "how-to/crewai.md": "crewai",
}
"""Pages on frameworks that may not be installed: CI's step for adapters runs them."""
PAGES = docskit.pages()


def name_of(page: Path) -> str:
    return str(page.relative_to(servers.REPOSITORY))


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


def anchors(page: Path) -> set[str]:
    """The headings of a page, as links name them."""
    headings = re.findall(
        r"^#+ (.*)$", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL), re.MULTILINE
    )
    return {
        re.sub(r"[^\w -]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(
        r"\]\(([^)\s]+)\)", re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)
    ):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{name_of(page)} links to {target}, which is not there"
        assert not anchor or there.suffix != ".md" or anchor in anchors(there), (
            f"{name_of(page)} links to {target}: no such heading"
        )


TEXTS = sorted(str(page.relative_to(DOCS)) for page in PAGES if page.is_relative_to(DOCS))


@pytest.mark.parametrize("text", TEXTS)
def test_every_page_is_found_from_the_index_the_site_and_llms_txt(text: str) -> None:
    site = (servers.REPOSITORY / "zensical.toml").read_text()
    for name, listed in [
        ("zensical.toml", re.findall(r'"([\w/-]+\.md)"', site)),
        *((name, links(DOCS / name)) for name in ("index.md", "llms.txt")),
    ]:
        assert (
            text in listed or text == name == "index.md" or (text, name) == ("index.md", "llms.txt")
        ), f"{name} does not list {text}"


def links(page: Path) -> list[str]:
    return re.findall(r"\]\(([\w/-]+\.\w+)\)", page.read_text())


@pytest.mark.parametrize("name", ["index.md", "llms.txt"])
def test_the_lists_of_pages_name_only_pages_that_are_there(name: str) -> None:
    assert [link for link in links(DOCS / name) if not (DOCS / link).exists()] == []
