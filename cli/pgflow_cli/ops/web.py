"""``pgflow web``: the console, served on this machine or, with tokens, to others too."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pgflow_cli.look.database import Dsn
from pgflow_cli.look.declaring import Made, opt
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.options import operator
from pgflow_cli.look.output import note
from pgflow_cli.look.parsing import read_toml
from pgflow_cli.look.targets import Target, check_roles, open_target
from pgflow_cli.ops.options import PORT, Logs

if TYPE_CHECKING:
    import asyncio

    from pgflow.app import AsyncApp
    from pgflow.web import Auth
    from pgflow_cli.ops.serving import Stop

LOOPBACK = ("127.0.0.1", "::1", "localhost")
REQUEST_SECONDS = 30.0
"""Time that a request may be on its way."""
MOST_HALF_OPEN = 100
"""Connections without a whole request."""
MOST_CONNECTIONS = 500
"""Connections at once; a request on one more is answered by 503."""
_HOST = re.compile(r"[A-Za-z0-9._:\[\]-]+|\*")


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
        from pgflow_cli.ops.oidc import read_oidc

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
    try:
        import uvicorn  # noqa: F401

        import pgflow.web
    except ImportError as error:
        raise Mistake(f'the console needs {error.name}: pip install "pgflow-engine[web]"') from None
    import asyncio

    from pgflow.codecs import Decoder
    from pgflow.declare import GRAPHS
    from pgflow.errors import InvalidArgument
    from pgflow_cli.ops.oidc import WEB_SECRET, web_secret
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
    server = make_server(served)
    with listen_at(access.host, access.port) as listening:
        link = f"/login?token={auth.token}" if isinstance(auth, pgflow.web.Local) else None
        asyncio.run(_serve(app, server, listening, Stop(), served.close, link))


def make_server(served: Any) -> Any:
    """Return a server of an ASGI application, by uvicorn without its own ways with signals: it
    would end by the signal again, and so never with 0.

    Args:
        served: The application.
    """
    import uvicorn

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    return Server(
        uvicorn.Config(
            _answering_to_the_end(served),
            http=_make_protocol(),
            log_config=None,
            log_level="warning",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            lifespan="off",
            timeout_graceful_shutdown=5,
            limit_concurrency=MOST_CONNECTIONS,
        )
    )


def _make_protocol() -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with a bound on requests that have not come as a whole: each has so
    long, and where they are too many the oldest makes room.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    half_open: dict[Any, asyncio.TimerHandle] = {}

    class Protocol(H11Protocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self.forget()
            super().connection_lost(exc)

        def watch(self) -> None:
            cycle = self.cycle
            if cycle is not None and not cycle.more_body and not cycle.response_complete:
                self.forget()
            elif self not in half_open and not self.transport.is_closing():
                half_open[self] = self.loop.call_later(REQUEST_SECONDS, self.give_up)
                if len(half_open) > MOST_HALF_OPEN:
                    next(iter(half_open)).give_up()

        def forget(self) -> None:
            if self in half_open:
                half_open.pop(self).cancel()

        def give_up(self) -> None:
            self.forget()
            self.transport.close()

    return Protocol


def _answering_to_the_end(served: Any) -> Any:
    """Return an application that answers also where the server stops and breaks a request off,
    because the database has not answered for so long. Else each is logged as an error of ours.
    """
    import asyncio

    async def answering(scope: Any, receive: Any, send: Any) -> None:
        has_begun = False

        async def noted(message: Any) -> None:
            nonlocal has_begun
            has_begun = True
            await send(message)

        try:
            await served(scope, receive, noted)
        except asyncio.CancelledError:
            if not has_begun:
                headers = [(b"content-type", b"text/plain; charset=utf-8")]
                await send({"type": "http.response.start", "status": 503, "headers": headers})
            text = b"" if has_begun else b"This server stops: load the page again later."
            await send({"type": "http.response.body", "body": text})

    return answering


def listen_at(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Raises:
        Mistake: The address is in use, or does not exist.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise Mistake(f"nothing can listen at {host}:{port}: {why}") from None


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
