"""The file of ``pgflow web --oidc``: the provider that logs people in, and their roles.

It holds no secret, so you can keep it beside the code. The secret of the client comes from
``PGFLOW_OIDC_SECRET``; a public client has none. ``PGFLOW_WEB_SECRET`` is the key of sessions and
forms, the same in all processes that serve one host. Without it each start makes its own key, and
people must log in again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.parsing import read_toml

if TYPE_CHECKING:
    from pgflow.web import Oidc

CLIENT_SECRET = "PGFLOW_OIDC_SECRET"  # noqa: S105  the name of a variable
WEB_SECRET = "PGFLOW_WEB_SECRET"  # noqa: S105
NEEDED = ("issuer", "client_id", "address", "roles")
KNOWN = {*NEEDED, "roles_claim", "name_claim", "scope"}
HERE = ("localhost", "127.0.0.1", "[::1]")


def read_oidc(path: Path) -> tuple[Oidc, list[str]]:
    """Return the login that a file describes, and the names by which browsers may call the console:
    that of its address, and those of this machine.

    Raises:
        Mistake: The file cannot be read, or has other content.
    """
    from pgflow.errors import InvalidArgument
    from pgflow.web import Oidc

    given = _read(path)
    address = given["address"].rstrip("/")
    if urlsplit(address).path:
        raise Mistake(
            f"{path}: address is where browsers see the console, which pgflow web serves at the "
            f"root of its host: {address!r} leads below it"
        )
    try:
        login = Oidc(
            given.pop("issuer"),
            given.pop("client_id"),
            os.environ.get(CLIENT_SECRET),
            **{**given, "address": address},
            secret=web_secret(),
        )
    except (InvalidArgument, ImportError) as error:
        text = str(error).replace("secret= of a login", WEB_SECRET)
        raise Mistake(text if isinstance(error, ImportError) else f"{path}: {text}") from None
    return login, [*HERE, (urlsplit(address).hostname or "").lower()]


def web_secret() -> bytes | None:
    """Return the key of sessions and forms; None if each process makes its own."""
    found = os.environ.get(WEB_SECRET)
    return found.encode() if found else None


def _read(path: Path) -> dict[str, Any]:
    """Return the content of a file, each value of its type.

    Raises:
        Mistake: It has other content.
    """
    given = read_toml(path)
    if {"client_secret", "secret"} & set(given):
        raise Mistake(f"{path}: this file must not hold a secret: set {CLIENT_SECRET} instead")
    if unknown := sorted(set(given) - KNOWN):
        raise Mistake(f"{path}: unknown key {unknown[0]}; use {', '.join(sorted(KNOWN))}")
    for name in NEEDED:
        if name not in given:
            raise Mistake(f"{path}: {name} is missing; it names {', '.join(NEEDED)}")
    for name, value in given.items():
        if name != "roles" and not (isinstance(value, str) and value):
            raise Mistake(f"{path}: {name} is a text")
    roles = given["roles"]
    if not isinstance(roles, dict) or not roles or not all(map(_is_list, roles.values())):
        raise Mistake(
            f"{path}: roles is a table of lists by the values of the claim: "
            'ops = ["operate", "approve"]'
        )
    return given


def _is_list(found: object) -> bool:
    return isinstance(found, list) and all(isinstance(one, str) for one in found)
