"""Options that both faces of the console share: the app to show, and the roles of the user."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

from pgflow_cli.look.database import find_dsn
from pgflow_cli.look.declaring import arg, opt
from pgflow_cli.look.failures import Mistake

if TYPE_CHECKING:
    from pgflow.app import AsyncApp

Target = Annotated[
    str | None,
    arg("Module or file with an app whose codec and approvers count here.", metavar="MODULE[:APP]"),
]
Roles = Annotated[
    list[str] | None,
    opt("A role of yours that gates ask for; more than once for more.", "--as", metavar="ROLE"),
]


def check_roles(roles: Iterable[str] | None) -> None:
    """Refuse a role name that is empty or holds a NUL.

    Raises:
        Mistake: One of them does.
    """
    for role in roles or ():
        if not role.encode() or "\0" in role:
            raise Mistake(f"--as takes the name of a role, not {role!r}")


def open_target(target: str | None, dsn: str | None, *, listen: bool) -> AsyncApp:
    """Return the app of a target; without one, an app that knows no workflows.

    Args:
        target: Module or file, perhaps with the app's name.
        dsn: The database.
        listen: True if an app without workflows listens for notifications.
    """
    from pgflow.app import AsyncApp

    if target is None:
        return AsyncApp(find_dsn(dsn), listen=listen)
    from pgflow_cli.look.targets import load_app

    return load_app(target, find_dsn(dsn) if os.environ.get("PGFLOW_TENANT") else dsn)
