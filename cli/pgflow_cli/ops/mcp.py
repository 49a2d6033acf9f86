"""``pgflow mcp``: tools for an assistant, which starts this program and talks to it by pipes."""

from __future__ import annotations

from typing import Annotated

import typer

from pgflow_cli.look.database import Dsn
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.mail import operator


def mcp(
    target: Annotated[
        str | None,
        typer.Argument(
            help="Module or file with an app whose codec and approvers count here.",
            metavar="MODULE[:APP]",
        ),
    ] = None,
    *,
    dsn: Dsn = None,
    writes: Annotated[
        bool, typer.Option("--write", help="Let it signal, pause, resume, retry, cancel, settle.")
    ] = False,
    answers: Annotated[
        bool, typer.Option("--answer", help="Let it answer gates, in your name.")
    ] = False,
    roles: Annotated[
        list[str] | None,
        typer.Option(
            "--as",
            metavar="ROLE",
            help="A role of yours that gates ask for; more than once for more.",
        ),
    ] = None,
) -> None:
    """Serves tools to an assistant that started it.

    They speak the Model Context Protocol on standard input and output. Without --write and --answer
    they only read. Orders are recorded with your name. The role of --dsn bounds all of it.
    """
    if roles and not answers:
        raise Mistake("--as is for gates: say --answer too")
    try:
        import pgflow.mcp
    except ImportError as error:
        raise Mistake(f'the tools need {error.name}: pip install "pgflow-engine[mcp]"') from None
    import asyncio

    from pgflow.app import AsyncApp
    from pgflow_cli.look.database import find_dsn
    from pgflow_cli.look.targets import load_app

    app = load_app(target, dsn) if target else AsyncApp(find_dsn(dsn), listen=False)

    async def serve() -> None:
        async with app:
            server = pgflow.mcp.make_server(
                app, name=operator(), writes=writes, answers=answers, acts_as=roles or ()
            )
            await server.run_stdio_async()

    asyncio.run(serve())
