"""Checkpoints of LangGraph in the database: the framework's own conformance suite, and what it does
not ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from records import in_a_loop

from pgflow import App, AsyncApp

pytest.importorskip("langgraph", reason="langgraph is not installed: pip install -e '.[adapters]'")
conformance = pytest.importorskip(
    "langgraph.checkpoint.conformance", reason="langgraph-checkpoint-conformance is not installed"
)

from langgraph.checkpoint.conformance.initializer import RegisteredCheckpointer  # noqa: E402

from pgflow.agent.langgraph import AsyncPgflowSaver, PgflowSaver  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

pytestmark = pytest.mark.timeout(90)


@pytest.mark.parametrize("is_async", [True, False])
@in_a_loop
async def test_the_saver_conforms_in_full(dsn: str, is_async: bool) -> None:
    async def saver() -> AsyncGenerator[Any, None]:
        if is_async:
            async with AsyncApp(dsn) as app:
                yield AsyncPgflowSaver(app)
        else:
            with App(dsn) as app:
                yield PgflowSaver(app)

    report = await conformance.validate(RegisteredCheckpointer("pgflow", saver))
    report.print_report()
    assert report.conformance_level() == "FULL", report.to_dict()
