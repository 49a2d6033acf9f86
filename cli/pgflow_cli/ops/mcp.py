"""``pgflow mcp``: tools for an assistant, which starts this program and talks to it by pipes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pgflow_cli.look.database import Dsn
from pgflow_cli.look.declaring import opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import operator
from pgflow_cli.look.targets import Roles, Target, check_roles, did_you_mean, open_target

if TYPE_CHECKING:
    from pgflow import Workflow
    from pgflow.app import AsyncApp


def mcp(
    target: Target = None,
    *,
    dsn: Dsn = None,
    writes: Annotated[bool, opt("--write")] = False,
    answers: Annotated[bool, opt("--answer")] = False,
    roles: Roles = None,
    offered: Annotated[list[str] | None, opt("--workflow", "-w", metavar="NAME")] = None,
) -> None:
    """Serves MCP tools over standard input and output.

    They speak the Model Context Protocol on standard input and output. Without --write and --answer
    they only read. Orders are recorded with your name. The role of --dsn bounds all of it.

    A tool of --workflow starts a run and waits half a minute for its result. Workers need not be
    here.

    Args:
        writes: Let it signal, pause, resume, retry, cancel, settle.
        answers: Let it answer gates, in your name.
        offered: Let it start this workflow of MODULE, as a tool; may be given again.
    """
    if roles and not answers:
        raise Mistake("--as requires --answer")
    check_roles(roles)
    import asyncio

    import pgflow.mcp

    if offered and target is None:
        raise Mistake(
            f"--workflow needs the module that has it: pgflow mcp MODULE --workflow {offered[0]}"
        )
    app = open_target(target, dsn, listen=False)
    server = pgflow.mcp.make_server(
        app,
        name=operator(),
        writes=writes,
        answers=answers,
        acts_as=roles or (),
        workflows=[_offered(app, name) for name in dict.fromkeys(offered or ())],
    )

    async def serve() -> None:
        async with app:
            await server.run_stdio_async()

    asyncio.run(serve())


def _offered(app: AsyncApp, name: str) -> Workflow[..., Any]:
    """Return the workflow of this name.

    Raises:
        Mistake: The app has none.
    """
    known = app.definitions.workflows
    if name not in known:
        raise Mistake(f"the app has no workflow {name!r}{did_you_mean(name, known)}")
    return known[name]
