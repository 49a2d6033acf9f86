"""The console of a node says which node it shows."""

from __future__ import annotations

import asyncio

from test_cluster import FLOWS, wait_for_go
from webkit import Browser, is_harmless

from pgflow import AsyncApp
from pgflow.web import Principal

ANN = Principal("ann", ["operate"])


def test_each_page_names_its_node(nodes: list[str], dsn: str) -> None:
    async def main() -> None:
        async with AsyncApp(nodes[1], include=FLOWS, cluster=True) as app:
            browser = Browser(app, ANN)
            await app.start(wait_for_go.options(key="here", node=2), 1)
            for path in ("/", "/runs", "/run?key=here", "/workers"):
                page = await browser.get(path)
                assert "node 2" in page.words
                assert is_harmless(page) == []
        async with AsyncApp(dsn, include=FLOWS) as app:
            assert "node" not in (await Browser(app, ANN).get("/")).words

    asyncio.run(main())
