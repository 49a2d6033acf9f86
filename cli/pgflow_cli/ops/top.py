"""The command: the live screen, or with ``--once`` one picture of it for scripts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from pgflow import inspect
from pgflow.console.output import Form, console, print_one
from pgflow_cli.look.database import Dsn
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import AsJson, choose_form, operator
from pgflow_cli.look.targets import Roles, Target, check_roles, open_target

if TYPE_CHECKING:
    from pgflow.console.orders import Person


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

    from pgflow.console.orders import Person

    if once:
        asyncio.run(_tell_once(target, dsn, choose_form(as_json=as_json)))
        return
    import pgflow.tui.screen  # noqa: F401 - what is missing is said before a database is asked

    if not (sys.stdin.isatty() and sys.stdout.isatty() and sys.stderr.isatty()):
        raise Mistake("the screen needs a terminal: for a script there is --once")
    person = None if read_only else Person(operator(), tuple(roles or ()))
    asyncio.run(_show(target, dsn, person))


async def _tell_once(target: str | None, dsn: str | None, form: Form) -> None:
    from rich.console import Group

    from pgflow.console.backend import Backend
    from pgflow.tui.views import draw, take_picture

    async with open_target(target, dsn, listen=False) as app:
        picture = await take_picture(Backend(app))
    print_one(form, picture.as_json(), lambda: Group(*draw(picture, console().width)))


async def _show(target: str | None, dsn: str | None, person: Person | None) -> None:
    from pgflow.tui.live import ImpatientBackend
    from pgflow.tui.screen import Top

    async with open_target(target, dsn, listen=False) as app:
        backend = ImpatientBackend(app)
        await backend.ask(inspect.database_now())  # one that cannot be reached needs no screen
        node = await backend.ask(inspect.this_node())
        of_node = "" if node is None else f" · node {node}"
        await Top(backend, person, _name(dsn) + of_node).run_async()


def _name(dsn: str | None) -> str:
    """Return the target of a connection string, without anything secret: ``app@db/orders``."""
    from psycopg.conninfo import conninfo_to_dict

    given = conninfo_to_dict(inspect.resolve_dsn(dsn) or "")
    user = f"{given['user']}@" if "user" in given else ""
    return f"{user}{given.get('host', '')}/{given.get('dbname', '')}" if given else ""
