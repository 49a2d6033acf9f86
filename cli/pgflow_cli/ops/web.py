"""``pgflow web``: the console, served on this machine or, with tokens or OpenID Connect, to others.

The file of ``--oidc`` names the provider that logs people in, and their roles. It holds no secret,
so you can keep it beside the code. The secret of the client comes from ``PGFLOW_OIDC_SECRET``; a
public client has none. ``PGFLOW_WEB_SECRET`` is the key of sessions and forms, the same in all
processes that serve one host. Without it each start makes its own key, and all must log in again.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

from pgflow.console.output import note
from pgflow_cli.look.database import Dsn
from pgflow_cli.look.declaring import Made, opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import operator
from pgflow_cli.look.parsing import read_toml
from pgflow_cli.look.targets import Target, check_roles, open_target
from pgflow_cli.ops.options import PORT, Logs

if TYPE_CHECKING:
    from pgflow.app import AsyncApp
    from pgflow.web import Auth, Oidc
    from pgflow_cli.ops.serving import Stop

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]+|\*")

CLIENT_SECRET = "PGFLOW_OIDC_SECRET"  # noqa: S105  the name of a variable
WEB_SECRET = "PGFLOW_WEB_SECRET"  # noqa: S105
NEEDED = ("issuer", "client_id", "address", "roles")
KNOWN = {*NEEDED, "roles_claim", "name_claim", "scope"}
HERE = ("localhost", "127.0.0.1", "[::1]")


@dataclass(frozen=True, kw_only=True)
class Access:
    """Options that say who may come in, and from where.

    Args:
        host: Address to listen at; another than this machine's needs --tokens or --oidc.
        tokens: TOML with a token and roles for each name.
        oidc: TOML with a provider of OpenID Connect, and roles by the values of a claim.
        read_only: Show, and take no orders; on this machine only.
        port: Port to listen at; 0 for any that is free.
        names: Name by which browsers may call it; may be given again.
        proxies: Address or network of a proxy with TLS before it; may be given again.
        roles: A role of yours that gates ask for, on this machine; may be given again.
    """

    host: str = "127.0.0.1"
    port: Annotated[int, PORT] = 8421
    tokens: Annotated[Path | None, opt(metavar="FILE")] = None
    oidc: Annotated[Path | None, opt(metavar="FILE")] = None
    names: Annotated[list[str] | None, opt("--allow-host", metavar="NAME")] = None
    proxies: Annotated[list[str] | None, opt("--behind-proxy", metavar="ADDRESS")] = None
    read_only: bool = False
    roles: Annotated[list[str] | None, opt("--as", metavar="ROLE")] = None

    def __post_init__(self) -> None:
        """Refuse options that would let in others, or that say two things.

        Raises:
            Mistake: They do.
        """
        is_open = self.tokens is not None or self.oidc is not None
        if self.host not in LOOPBACK and not is_open:
            raise Mistake(
                f"at {self.host} others could come in: name who may by --tokens FILE or --oidc "
                "FILE, or listen at 127.0.0.1"
            )
        if self.tokens is not None and self.oidc is not None:
            raise Mistake("--tokens and --oidc exclude each other: pass one of them")
        if is_open and (self.read_only or self.roles):
            way = "--tokens" if self.oidc is None else "--oidc"
            raise Mistake(f"--read-only and --as are for this machine; the file of {way} has roles")
        if self.proxies and not is_open:
            raise Mistake("--behind-proxy requires --tokens FILE or --oidc FILE")
        for name in self.names or ():
            if not _HOST.fullmatch(name):
                raise Mistake(f"--allow-host takes a name such as ops.example.org, not {name!r}")
        check_roles(self.roles)

    def auth(self) -> tuple[Auth, list[str]]:
        """Return how people log in, and the host names that the OIDC file allows."""
        from pgflow.web import Local

        if self.oidc is not None:
            return read_oidc(self.oidc)
        if self.tokens is not None:
            return read_tokens(self.tokens), []
        allowed = ["view"] if self.read_only else ["admin"]
        return Local(operator(), roles=allowed, acts_as=self.roles or ()), []


def web(
    target: Target = None,
    *,
    access: Annotated[Access, Made(Access)],
    logs_at: Annotated[str, opt("--logs", metavar="ADDRESS")] = "",
    logs: Logs,
    dsn: Dsn = None,
) -> None:
    """Serves the web console.

    By default it is for this machine: the link that it prints logs you in, and records your login
    name. With --tokens each person needs a token. With --oidc a provider logs people in. With
    either it may listen elsewhere. The secret of the client is PGFLOW_OIDC_SECRET. Put a proxy that
    speaks TLS before it: name its address by --behind-proxy, and the hosts that browsers ask for by
    --allow-host. PGFLOW_CODEC_URL and PGFLOW_CODEC_TOKEN name an endpoint that opens encoded
    values.

    Args:
        logs_at: Address of the logs of a run, such as https://logs.example.org/?q={trace_id}.
    """
    import asyncio

    import uvicorn  # noqa: F401 - before a server is started for nothing

    import pgflow.web
    from pgflow.codecs import Decoder
    from pgflow.declare import GRAPHS
    from pgflow.errors import InvalidArgument
    from pgflow_cli.ops.serving import Stop

    logs.set_up()
    auth, hosts = access.auth()
    names = [*hosts, *(access.names or ())]
    app = open_target(target, dsn, listen=True)
    try:
        served = pgflow.web.asgi(
            app,
            auth=auth,
            hosts=names or None,
            secret=web_secret(),
            logs=logs_at,
            graphs=GRAPHS,
            behind_proxy=access.proxies or (),
            decoder=Decoder.from_environment(),
        )
    except InvalidArgument as error:
        text = str(error).replace("logs=", "--logs").replace("secret= of a console", WEB_SECRET)
        raise Mistake(text) from None
    from pgflow.web.serving import listen_at, make_server

    server = make_server(served)
    with listen_at(access.host, access.port) as listening:
        link = f"/login?token={auth.token}" if isinstance(auth, pgflow.web.Local) else None
        asyncio.run(_serve(app, server, listening, Stop(), served.close, link))


async def _serve(
    app: AsyncApp,
    server: Any,
    listening: socket.socket,
    stop: Stop,
    close: Callable[[], None],
    link: str | None,
) -> None:
    """Serve until a signal asks to stop.

    Args:
        app: The app.
        server: The server.
        listening: The socket that it listens at.
        stop: Receives the signal.
        close: Function that ends the live pages.
        link: Path that logs in the local user. It is a secret, so it is never logged.
    """
    import asyncio
    import logging

    asked = stop.event()
    async with app:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        host, port = listening.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        if link is None:
            logging.getLogger("pgflow").info("the console is at http://%s:%s/", shown, port)
        else:
            note(f"Open http://{shown}:{port}{link}")
        stopping = asyncio.create_task(asked.wait())
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        server.should_exit = True
        close()
        stopping.cancel()
        await serving


def read_tokens(path: Path) -> Auth:
    """Return the tokens of a file: a table for each name, with ``token`` and ``roles``, perhaps
    ``acts_as``.

    Raises:
        Mistake: It cannot be read, or has other content.
    """
    from pgflow.errors import InvalidArgument
    from pgflow.web import Principal, Tokens

    given = read_toml(path)
    principals: dict[str, Principal] = {}
    try:
        for name, one in given.items():
            token = _token(path, name, one)
            if token in principals:
                raise Mistake(f"{path}: {name} has the token of {principals[token].name}")
            principals[token] = Principal(name, one.get("roles", ["view"]), one.get("acts_as", ()))
        return Tokens(principals)
    except InvalidArgument as error:
        raise Mistake(f"{path}: {error}") from None


def _token(path: Path, name: str, given: Mapping[str, Any]) -> str:
    known = {"token", "roles", "acts_as"}
    if not isinstance(given, dict) or not isinstance(given.get("token"), str) or set(given) - known:
        raise Mistake(f"{path}: {name} is a table with token, roles and perhaps acts_as")
    return str(given["token"])


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
