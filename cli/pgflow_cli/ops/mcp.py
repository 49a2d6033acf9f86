"""``pgflow mcp``: tools for an assistant, which starts this program and talks to it by pipes."""

from __future__ import annotations

from typing import Annotated

import typer

from pgflow_cli.look.database import Dsn
from pgflow_cli.look.desk import Roles, Target, check_roles, open_target
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.mail import operator


def mcp(
    target: Target = None,
    *,
    dsn: Dsn = None,
    writes: Annotated[
        bool, typer.Option("--write", help="Let it signal, pause, resume, retry, cancel, settle.")
    ] = False,
    answers: Annotated[
        bool, typer.Option("--answer", help="Let it answer gates, in your name.")
    ] = False,
    roles: Roles = None,
) -> None:
    """Serves tools to an assistant that started it.

    They speak the Model Context Protocol on standard input and output. Without --write and --answer
    they only read. Orders are recorded with your name. The role of --dsn bounds all of it.
    """
    if roles and not answers:
        raise Mistake("--as is for gates: say --answer too")
    check_roles(roles)
    try:
        import pgflow.mcp
    except ImportError as error:
        raise Mistake(f'the tools need {error.name}: pip install "pgflow-engine[mcp]"') from None
    import asyncio

    app = open_target(target, dsn, listen=False)

    async def serve() -> None:
        async with app:
            server = pgflow.mcp.make_server(
                app, name=operator(), writes=writes, answers=answers, acts_as=roles or ()
            )
            await server.run_stdio_async()

    asyncio.run(serve())
