"""Pages, as functions make them, and the forms that they are sent.

A page is data: the name of a template, and values for it. Only :mod:`pgflow.web.console` makes HTML
of it, so that everything is escaped in one place.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import RedirectResponse

from pgflow.console.orders import Order, Person
from pgflow.errors import InvalidArgument, NotAllowed
from pgflow.web.guard import has_mark
from pgflow.web.principals import Principal

MAX_FIELDS = 400
"""Most fields of a form: one for a value has a hundred, and marks beside them."""


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        template: Name of its template, without ``.html``.
        title: Title of the page.
        values: Values for the template.
        command: Command line that shows the same.
        status: Status of the answer.
        under: Path of the page that the navigation shows it under; its own if not given.
    """

    template: str
    title: str
    values: Mapping[str, Any] = field(default_factory=dict)
    command: str = ""
    status: int = 200
    under: str = ""


def principal_of(request: Request) -> Principal:
    """Return the principal who sends a request; the guard has let them in."""
    principal: Principal = request.scope["pgflow.principal"]
    return principal


def person_of(request: Request) -> Person:
    """Return the principal who sends a request, as one who gives orders."""
    principal = principal_of(request)
    return Person(principal.name, tuple(principal.acts_as))


def need(request: Request, role: str) -> Principal:
    """Return the principal of a request that needs a role.

    Raises:
        NotAllowed: They do not have it.
    """
    principal = principal_of(request)
    if not principal.may(role):
        raise NotAllowed(
            f"{principal.name} may not do this: it needs the role {role!r} in this console"
        )
    return principal


def query(request: Request, name: str) -> str:
    """Return a parameter of the query string.

    Raises:
        InvalidArgument: It is missing or empty.
    """
    found = request.query_params.get(name, "")
    if not found:
        raise InvalidArgument(f"this address names no {name}")
    return found


def order_of(request: Request, orders: Mapping[str, Order], takes: str) -> Order:
    """Return the order that the address of a page names.

    Args:
        request: The request.
        orders: Orders by their verbs.
        takes: Words for what takes them, such as ``a run takes``.

    Raises:
        InvalidArgument: It names none of them.
    """
    verb = query(request, "verb")
    if verb not in orders:
        raise InvalidArgument(f"{takes} no order {verb!r}")
    return orders[verb]


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form that this console has made for its sender.

    Raises:
        NotAllowed: It was made for another user.
        InvalidArgument: It is not a form.
    """
    body = await request.body()
    try:
        text = body.decode("ascii")
        pairs = urllib.parse.parse_qsl(
            text, keep_blank_values=True, max_num_fields=MAX_FIELDS, errors="strict"
        )
    except ValueError:
        raise InvalidArgument("this form is not from this console") from None
    fields = dict(pairs)
    if not has_mark(request, fields.get("mark", "")):
        raise NotAllowed(
            "this form was not made for you, or it is from before the console was started again: "
            "go back, load the page anew, and send it again"
        )
    return {name: value.replace("\r\n", "\n") for name, value in fields.items()}


def link(request: Request, path: str, /, **said: Any) -> str:
    """Return the address of a page of this console, wherever it is mounted."""
    given = {name: str(value) for name, value in said.items() if value not in (None, "", ())}
    root = request.scope.get("root_path", "")
    return f"{root}{path}" + (f"?{urllib.parse.urlencode(given)}" if given else "")


def see(request: Request, path: str, /, **said: Any) -> RedirectResponse:
    """Return a redirect to the page that shows the result of a form."""
    return RedirectResponse(link(request, path, **said), 303)
