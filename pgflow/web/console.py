"""The application: addresses, pages made HTML, and errors made pages."""

from __future__ import annotations

import contextlib
import logging
import urllib.parse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jinja2
import psycopg
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, HTMLResponse, Response
from starlette.routing import Route

from pgflow import __version__, inspect
from pgflow.app import App, AsyncApp
from pgflow.codecs import Decoder
from pgflow.console import words
from pgflow.console.backend import Backend, Unreachable, hurried, watched
from pgflow.console.graphs import GraphDrawer
from pgflow.console.output import many
from pgflow.console.traces import checked_logs
from pgflow.errors import (
    GateClosed,
    HasActed,
    InvalidArgument,
    MissingGrant,
    NotAllowed,
    PayloadChanged,
    PgflowError,
    PoolNotFound,
    RelayNotFound,
    RunNotFound,
    ScheduleNotFound,
    SetupError,
    WrongState,
)
from pgflow.logs import redacted
from pgflow.texts import printable
from pgflow.web.guard import Guard, TooLong, TooSlow, refusal
from pgflow.web.live import LIVE_PATHS, Live, wants_stream
from pgflow.web.logins import Handler, login_routes
from pgflow.web.news import News
from pgflow.web.page import Page, link
from pgflow.web.pages import (
    again,
    answers,
    bulk,
    compare,
    filters,
    gates,
    health,
    home,
    orders,
    outbox,
    overview,
    owed,
    policy,
    queues,
    relays,
    run,
    runs,
    schedules,
    sheet,
    supply,
    workflows,
)
from pgflow.web.principals import LOCAL_HOSTS, MIN_SECRET_BYTES, Auth, Local, Login
from pgflow.web.proxies import read_proxies

log = logging.getLogger("pgflow")

HERE = Path(__file__).parent
LIVE_SECONDS = 5
TENANTS_SECONDS = 60.0
"""Time for which it counts whether runs have tenants."""
"""Seconds after which a page is loaded again by a browser that runs no script, if it was asked."""

NAVIGATION = (
    ("Now", (("/", "Triage"), ("/overview", "Overview"), ("/runs", "Runs"), ("/gates", "Gates"))),
    ("Ledgers", (
        ("/effects", "Effects"), ("/obligations", "Obligations"), ("/budgets", "Budgets"),
        ("/policy", "Policy"),
    )),
    ("Work", (
        ("/workflows", "Workflows"), ("/schedules", "Schedules"), ("/queues", "Queues"),
        ("/workers", "Workers"), ("/outbox", "Outbox"),
    )),
    ("System", (("/health", "Database"), ("/sql", "SQL"))),
)  # fmt: skip
"""Pages by group. The tabs are the groups, and below them the pages of the present one."""
PARENTS = {
    "/run": "/runs", "/run/order": "/runs", "/gate": "/gates", "/budget": "/budgets",
    "/schedule": "/schedules", "/schedule/order": "/schedules", "/relay": "/outbox",
    "/relay/order": "/outbox",
    "/sql/page": "/sql", "/workflow": "/workflows", "/worker": "/workers", "/queue": "/queues",
}  # fmt: skip

READS: tuple[tuple[str, Handler], ...] = (
    ("/", home.show_home), ("/overview", overview.show_overview),
    ("/runs", runs.show_runs), ("/run", run.show_run),
    ("/run/value", run.show_value), ("/run/order", orders.ask_order),
    ("/run/again", again.ask_again), ("/runs/order", bulk.ask_many), ("/gates", gates.show_gates),
    ("/gates/answer", answers.ask_answers), ("/gate", gates.show_gate),
    ("/effects", owed.show_effects),
    ("/obligations", owed.show_obligations), ("/debt", owed.show_debt),
    ("/budgets", supply.show_budgets), ("/budget", supply.show_budget),
    ("/schedules", schedules.show_schedules), ("/schedule", schedules.show_schedule),
    ("/schedule/order", schedules.ask_order), ("/outbox", outbox.show_outbox),
    ("/relay", outbox.show_relay), ("/queues", queues.show_queues),
    ("/workers", supply.show_workers), ("/sql", sheet.show_sheet),
    ("/workflows", workflows.show_workflows), ("/workflow", workflows.show_workflow),
    ("/policy", policy.show_policy), ("/worker", supply.show_worker),
    ("/queue", queues.show_queue), ("/health", health.show_health),
    ("/filters", filters.ask_filter),
    ("/relay/order", relays.ask_order), ("/run/compare", compare.show_comparison),
)  # fmt: skip
WRITES: tuple[tuple[str, Handler], ...] = (
    ("/run/order", orders.give_order), ("/run/again", again.do_again),
    ("/runs/order", bulk.tell_many),
    ("/gates/answer", answers.give_answers),
    ("/gate", gates.answer_gate), ("/debt", owed.close_debt),
    ("/budget", supply.change_budget), ("/schedule/order", schedules.give_order),
    ("/sql", sheet.run_sheet), ("/filters", filters.save_filter),
    ("/relay/order", relays.give_order), ("/queue", queues.change_queue),
)  # fmt: skip
FILES = (
    ("/static/console.css", "text/css"),
    ("/static/console.js", "text/javascript"),
    ("/static/icon.svg", "image/svg+xml"),
)  # fmt: skip
BEGINS, ENDS = "<!--page-->", "<!--/page-->"
"""The part of a live page that is sent again; nothing that is shown can be such a comment."""

STATUSES: tuple[tuple[type[Exception], int, str], ...] = (
    (GateClosed, 410, "Nothing to answer"),
    (PayloadChanged, 409, "Something else is asked now"),
    (RunNotFound, 404, "Not found"),
    (PoolNotFound, 404, "Not found"),
    (ScheduleNotFound, 404, "Not found"),
    (RelayNotFound, 404, "Not found"),
    (MissingGrant, 403, "The database says no"),
    (NotAllowed, 403, "Not allowed"),
    (WrongState, 409, "Not in this state"),
    (HasActed, 409, "Later steps have acted"),
    (InvalidArgument, 400, "This cannot be"),
    (SetupError, 503, "The database is not ready"),
)


def asgi(
    app: App | AsyncApp,
    *,
    auth: Auth,
    hosts: Sequence[str] | None = None,
    secret: bytes | None = None,
    logs: str = "",
    graphs: Mapping[str, GraphDrawer] | None = None,
    auditor_dsn: str | None = None,
    behind_proxy: Sequence[str] = (),
    decoder: Decoder | None = None,
) -> Guard:
    """Return the console of an app, as an ASGI application. Mount it anywhere.

    Args:
        app: The app, which is open while requests come. Its codec opens what pages show.
        auth: Function, ``async def`` or ``def``, that returns the sender of a request as a
            :class:`Principal`, or None for one who may not look. :class:`Local`, :class:`Tokens`
            and :class:`Oidc` are three.
        hosts: Host names under which the server may be called, without a port; any if not given,
            and those of this machine for :class:`Local`.
        secret: At least 32 random bytes, the same in all processes that serve one host, so that
            each accepts the forms of the others.
        logs: Address of the logs of a run, such as ``https://logs.example.org/?q={trace_id}``;
            ``{key}`` is the key of the run. The page of a run links to it.
        graphs: Drawers of graphs by the name of the workflow, for the pages of its runs:
            ``pgflow.declare.GRAPHS`` draws workflows from files.
        auditor_dsn: The database of the app by a login that is a member of ``pgflow_auditor`` and
            of nothing else. It runs the statements that people write on the page *SQL*. Else
            ``PGFLOW_AUDITOR_DSN``.
        behind_proxy: Addresses, or networks, of the proxies that end TLS before it. Only their
            ``X-Forwarded-For`` and ``X-Forwarded-Proto`` are trusted.
        decoder: Endpoint that opens values for pages where the app has no keys: a
            :class:`pgflow.codecs.Decoder`. Everyone who may look sees them; secrets stay masked.

    Returns:
        The application. Its ``close()`` ends the live pages, which a server may wait for when it
        stops.

    Raises:
        InvalidArgument: The secret is too short, an address is invalid, or :class:`Local` is to be
            behind a proxy.

    Example::

        def who(request):
            user = request.session.get("user")
            return user and pgflow.web.Principal(user, ["operate", "approve"])

        site.mount("/pgflow", pgflow.web.asgi(app, auth=who))
    """
    if secret is not None and len(secret) < MIN_SECRET_BYTES:
        raise InvalidArgument(f"secret= of a console has at least {MIN_SECRET_BYTES} bytes")
    proxies = read_proxies(behind_proxy)
    if proxies and isinstance(auth, Local):
        raise InvalidArgument(
            "Local cannot log people in behind a proxy: pass Tokens or Oidc as auth="
        )
    if hosts is None and isinstance(auth, Local):
        hosts = LOCAL_HOSTS
    backend = Backend(app)
    backend.logs, backend.graphs = checked_logs(logs), graphs or {}
    backend.auditor_dsn, backend.decoder = auditor_dsn, decoder
    console = _Console(backend, auth)
    return Guard(console.pages(), auth, hosts, secret, console.live.close, proxies)


class _Console:
    """The pages of one app."""

    def __init__(self, backend: Backend, auth: Auth) -> None:
        self._backend = backend
        self._auth = auth
        self._templates = _environment()
        self._node: list[int | None] = []
        """Number of the node of a cluster, once it has been asked for."""
        self._tenants = inspect.Tenants((), has_others=False)
        self.live = Live(News(self._backend), self._make_part)

    def pages(self) -> Starlette:
        """Return the application without its guard."""
        routes = [
            Route(path, partial(self._answer, handler), methods=["GET"]) for path, handler in READS
        ]
        routes += [
            Route(path, partial(self._answer, handler), methods=["POST"])
            for path, handler in WRITES
        ]
        behind = partial(self._answer, partial(_behind, dict(READS)))
        routes.append(Route("/sql/page", behind, methods=["GET"]))
        routes += [Route(path, partial(_file, HERE / path[1:], kind)) for path, kind in FILES]
        routes += [
            Route(path, partial(self._answer, handler), methods=[method])
            for path, method, handler in login_routes(self._auth)
        ]
        return Starlette(routes=routes, exception_handlers={404: _no_page, 405: _no_page})

    async def _answer(self, handler: Handler, request: Request) -> Response:
        if wants_stream(request):
            if request.method != "GET" or _path_of(request) not in LIVE_PATHS:
                return refusal(406, "This page is not live.")
            return self.live.stream(request)
        mark = self.live.mark
        try:
            found = await self._made(handler, request)
        except TooLong:
            return refusal(413, "This form is too long.")
        except TooSlow:
            return refusal(408, "This form did not come in time.")
        except ClientDisconnect:
            return refusal(400, "This form did not come as a whole.")
        if not isinstance(found, Page):
            return found
        if found.status == 200 and "pgflow.principal" in request.scope:
            await self._ask_place()
        return self._render(request, found, mark)

    async def _ask_place(self) -> None:
        with contextlib.suppress(PgflowError, psycopg.Error), hurried():
            if not self._node:
                self._node.append(await self._backend.ask(inspect.this_node()))
            self._tenants = await self._backend.ask_seldom(
                "tenants", inspect.read_tenants(), TENANTS_SECONDS
            )

    async def _made(self, handler: Handler, request: Request) -> Page | Response:
        """Return the page of a request, or a page with the reason why it cannot be made."""
        try:
            with hurried():
                return await handler(self._backend, request)
        except (PgflowError, psycopg.Error, *Unreachable) as error:
            return self._explain(error)

    async def _make_part(self, request: Request) -> tuple[str, float]:
        """Return what is sent again of a live page, and the seconds that it was asked for."""
        with watched() as seen:
            found = await self._made(dict(READS)[_path_of(request)], request)
        text = self._text(request, found) if isinstance(found, Page) else ""
        return text.partition(BEGINS)[2].partition(ENDS)[0], seen.seconds

    def _explain(self, error: Exception) -> Page:
        """Return the page for an error that the user can act on.

        Raises:
            Exception: It is any other error.
        """
        for cls, status, title in STATUSES:
            if isinstance(error, cls):
                return _trouble(status, title, str(error))
        if isinstance(error, psycopg.errors.QueryCanceled):
            return _trouble(503, "This took too long", "Ask for less: a key, a status, a queue.")
        if isinstance(error, psycopg.DataError):
            return _trouble(400, "This cannot be", "The database cannot take such a text.")
        if isinstance(error, Unreachable):
            log.warning("the console cannot ask the database: %s", redacted(error))
            text = "The database does not answer. Runs wait, and go on once it is back."
            return _trouble(503, "No answer from the database", text)
        if isinstance(error, PgflowError):
            return _trouble(409, "This cannot be", str(error))
        raise error

    def _render(self, request: Request, page: Page, mark: str = "") -> HTMLResponse:
        text = self._text(request, page, mark)
        headers = {"refresh": str(LIVE_SECONDS)} if _is_live(request, page) else {}
        return HTMLResponse(text, page.status, headers)

    def _text(self, request: Request, page: Page, mark: str = "") -> str:
        """Return the HTML of a page."""
        can_live, is_live = _can_live(request, page), _is_live(request, page)
        path = page.under or _path_of(request)
        values: dict[str, Any] = {
            **page.values,
            "title": page.title,
            "command": page.command,
            "link": partial(link, request),
            "here": PARENTS.get(path, path),
            "navigation": NAVIGATION,
            "principal": request.scope.get("pgflow.principal"),
            "mark": request.scope.get("pgflow.mark", ""),
            "version": __version__,
            "node": self._node[0] if self._node else None,
            "tenants": self._tenants,
            "can_leave": isinstance(self._auth, Login) and not isinstance(self._auth, Local),
            "live_mark": mark if can_live else "",
            "can_live": can_live,
            "is_live": is_live,
            "toggle": _toggle(request, is_live=is_live),
            "behind": _behind_of(request, page),
        }
        return self._templates.get_template(f"{page.template}.html").render(values)


async def _behind(handlers: sheet.Handlers, backend: Backend, request: Request) -> Page:
    return await sheet.show_behind(backend, request, handlers)


def _trouble(status: int, title: str, text: str) -> Page:
    return Page("trouble", title, {"text": text}, status=status)


async def _no_page(request: Request, error: Exception) -> Response:
    del request
    status: int = getattr(error, "status_code", 404)
    return refusal(
        status, "This page does not exist." if status == 404 else "This page cannot be shown."
    )


async def _file(path: Path, kind: str, request: Request) -> Response:
    del request
    return FileResponse(path, media_type=kind)


def _path_of(request: Request) -> str:
    path: str = request.scope["path"]
    root: str = request.scope.get("root_path", "")
    return (path[len(root) :] if root and path.startswith(root) else path) or "/"


def _behind_of(request: Request, page: Page) -> str:
    """Return the address of the page that shows what this one asks; empty for none."""
    path = _path_of(request)
    if request.method != "GET" or page.status != 200 or path.startswith(("/sql", "/login")):
        return ""
    ours = ("live", "done", "seen")
    said = [pair for pair in request.query_params.multi_items() if pair[0] not in ours]
    query = urllib.parse.urlencode(said)
    return link(request, "/sql/page", page=path + (f"?{query}" if query else ""))


def _can_live(request: Request, page: Page) -> bool:
    return request.method == "GET" and page.status == 200 and _path_of(request) in LIVE_PATHS


def _is_live(request: Request, page: Page) -> bool:
    return _can_live(request, page) and request.query_params.get("live") == "1"


def _toggle(request: Request, *, is_live: bool) -> str:
    """Return the address of this page, live or not."""
    ours = ("live", "done", "seen")
    said = {name: value for name, value in request.query_params.items() if name not in ours}
    return link(request, _path_of(request), **said, **({} if is_live else {"live": 1}))


# ---------------------------------------------------------------- templates


def _environment() -> jinja2.Environment:
    """Return templates that escape whatever they are given."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_seen,
    )
    environment.filters |= {
        "duration": words.duration,
        "number": words.number,
        "offset": words.offset,
        "shown": words.shown,
        "when": words.when,
        "many": many,
        "counted": words.counted,
        "size": words.size,
    }
    environment.globals |= {"age": words.age}
    return environment


def _seen(value: Any) -> Any:
    """Return a text without what a reader cannot see; HTML of ours as it is."""
    if isinstance(value, str) and not isinstance(value, Markup):
        return printable(value, keep="\n")
    return "" if value is None else value
