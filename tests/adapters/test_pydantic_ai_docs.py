"""The blocks of the page on pydantic-ai run where the framework is installed."""

from __future__ import annotations

import docskit
import pytest
import servers

pytest.importorskip("pydantic_ai.durable_exec", reason="pip install -e '.[adapters]'")
pytest.importorskip("fastmcp.server", reason="pip install -e '.[adapters]'")


@pytest.mark.alone  # it copies its database
def test_the_page_on_pydantic_ai_runs(dsn, tmp_path):
    page = servers.REPOSITORY / "docs" / "how-to" / "pydantic-ai.md"
    reader = docskit.Reader(dsn, tmp_path)
    reader.follow(page)
    assert reader.done == len(docskit.blocks(page))
