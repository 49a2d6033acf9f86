"""Workflows: how the newest runs of each go, its steps, and which versions of it are in flight."""

from __future__ import annotations

from starlette.requests import Request

from pgflow.console.backend import Backend
from pgflow.console.flowchart import draw_flowchart
from pgflow.console.words import quoted
from pgflow.errors import RunNotFound
from pgflow.inspect import (
    database_now,
    draw_sql_flow,
    list_patches,
    list_sql_flows,
    list_step_times,
    list_versions,
    list_workflow_rows,
)
from pgflow.web.page import Page, query

MOST_ROWS = 200
KEPT_SECONDS = 10.0
"""Time for which versions in flight are shown as they were read: they change with deployments."""


async def show_workflows(backend: Backend, request: Request) -> Page:
    """Show each workflow, from its newest runs."""
    del request
    found = await backend.ask(list_workflow_rows())
    return Page(
        "workflows",
        "Workflows",
        {"workflows": found[:MOST_ROWS], "now": await backend.ask(database_now())},
        "pgflow versions",
    )


async def show_workflow(backend: Backend, request: Request) -> Page:
    """Show a workflow: its steps, versions and patches, and the chart of one in SQL."""
    name = query(request, "name")
    rows = [row for row in await backend.ask(list_workflow_rows()) if row.workflow == name]
    steps = await backend.ask(list_step_times(name))
    # Both read every open run, for all workflows alike.
    found = await backend.ask_seldom("versions", list_versions(), KEPT_SECONDS)
    versions = [row for row in found if row.workflow == name]
    flow = next((row for row in await backend.ask(list_sql_flows(name)) if row.is_current), None)
    may_see = flow is not None and flow.body is not None
    if not (rows or steps or versions or flow):
        raise RunNotFound(f"workflow {name!r} is unknown to the newest runs and the workers")
    patches = await backend.ask_seldom("patches", list_patches(), KEPT_SECONDS)
    return Page(
        "workflow",
        name,
        {
            "name": name,
            "row": rows[0] if rows else None,
            "flow": flow,
            "chart": draw_flowchart(await backend.ask(draw_sql_flow(name))) if may_see else None,
            "steps": steps[:MOST_ROWS],
            "versions": versions[:MOST_ROWS],
            "patches": [row for row in patches if row.workflow == name][:MOST_ROWS],
            "now": await backend.ask(database_now()),
        },
        f"pgflow versions {quoted(name)}",
    )
