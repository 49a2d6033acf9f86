"""The command: the live screen, or with ``--once`` one picture of it for scripts."""

from __future__ import annotations

import sys

import typer

from pgflow import inspect
from pgflow_cli.look.database import Dsn
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import operator
from pgflow_cli.look.output import AsJson, Form, choose_form, console, dump
from pgflow_cli.look.targets import Roles, Target, check_roles, open_target


def top(
    target: Target = None,
    *,
    dsn: Dsn = None,
    read_only: bool = False,
    roles: Roles = None,
    once: bool = False,
    as_json: AsJson = None,
) -> None:
    """Opens the live console in the terminal.

    It trusts the user at the terminal, and records that name with every order. --once prints what
    needs a person, queues, runs, workers, gates, debts and budgets, for scripts in JSON.

    Args:
        read_only: Show, and take no orders.
        once: Print one picture, and end.
    """
    check_roles(roles)
    if as_json is not None and not once:
        raise Mistake("--json and --table go with --once")
    import asyncio

    if once:
        asyncio.run(_tell_once(target, dsn, choose_form(as_json=as_json)))
        return
    try:
        import textual  # noqa: F401 - its absence is one line
    except ImportError:
        raise Mistake('the screen needs textual: pip install "pgflow-engine[tui]"') from None
    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        raise Mistake("the screen needs a terminal: for a script there is --once")
    asyncio.run(_show(target, dsn, tuple(roles or ()), read_only=read_only))


async def _tell_once(target: str | None, dsn: str | None, form: Form) -> None:
    from pgflow.console.backend import Backend
    from pgflow_cli.top.views import draw, take_picture

    async with open_target(target, dsn, listen=False) as app:
        picture = await take_picture(Backend(app))
    if form is Form.JSON:
        typer.echo(dump(picture.as_json(), indent=2 if sys.stdout.isatty() else None))
        return
    out = console()
    for part in draw(picture, out.width):
        out.print(part)


async def _show(
    target: str | None, dsn: str | None, roles: tuple[str, ...], *, read_only: bool
) -> None:
    from pgflow.console.orders import Person
    from pgflow_cli.top.live import ImpatientBackend
    from pgflow_cli.top.screen import Top

    person = None if read_only else Person(operator(), roles)
    async with open_target(target, dsn, listen=False) as app:
        backend = ImpatientBackend(app)
        await backend.ask(
            inspect.database_now()
        )  # an unreachable database is reported without a screen
        node = await backend.ask(inspect.this_node())
        of_node = "" if node is None else f" · node {node}"
        await Top(backend, person, _name(dsn) + of_node).run_async()


def _name(dsn: str | None) -> str:
    """Return the target of a connection string, without anything secret: ``app@db/orders``."""
    from psycopg.conninfo import conninfo_to_dict

    given = conninfo_to_dict(inspect.resolve_dsn(dsn) or "")
    user = f"{given['user']}@" if "user" in given else ""
    return f"{user}{given.get('host', '')}/{given.get('dbname', '')}" if given else ""
