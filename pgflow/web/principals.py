"""Principals: the users of the console, and their roles.

The console does not know users itself. A host that mounts it does, and passes a function that
returns them. Without a host there are three ways: :class:`Local` trusts a browser that opens the
link printed on this machine, :class:`Tokens` asks for a token, and :class:`pgflow.web.Oidc` asks a
provider. They keep the answer in a signed cookie.
"""

from __future__ import annotations

import getpass
import hashlib
import hmac
import ipaddress
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from itsdangerous import BadData, URLSafeSerializer
from starlette.requests import HTTPConnection

from pgflow.errors import InvalidArgument

Role = Literal["view", "operate", "approve", "admin"]
"""Things that a principal may do: look; give orders to runs and close what is owed; answer gates;
and all of it, with what pools allow.
"""

ROLES: tuple[str, ...] = get_args(Role)

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
LOOPBACK = ("127.0.0.1", "::1")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^:@\[\]]*)(?::[0-9]*)?")

MIN_TOKEN_CHARS = 16
MIN_SECRET_BYTES = 32
SESSION_SECONDS = 12 * 3600
MAX_FAILURES = 5
"""Wrong tokens from one place, after which no token from there is looked at until..."""
FAILURE_SECONDS = 60.0
"""...so long after the first of them."""
MOST_PLACES = 10_000
"""Places whose failures are kept."""
DEVICE_SECONDS = 180 * 24 * 3600

SESSION_COOKIE = "pgflow_session"
DEVICE_COOKIE = "pgflow_device"
"""Mark of a browser in which a token was right once: wrong ones of others do not lock it out."""


@dataclass(frozen=True)
class Principal:
    """A person, as the console knows them.

    Attributes:
        name: Name that is recorded with whatever they do.
        roles: ``view``, ``operate``, ``approve`` or ``admin``; each of them may look.
        acts_as: Roles that gates ask for, where the app has no function ``approvers``.
    """

    name: str
    roles: Iterable[str] = ("view",)
    acts_as: Iterable[str] = ()

    def __post_init__(self) -> None:
        """Refuse what means nothing."""
        if not isinstance(self.name, str) or not self.name.strip():
            raise InvalidArgument("a principal has a name: it is recorded with what they do")
        if isinstance(self.roles, str) or isinstance(self.acts_as, str):
            raise InvalidArgument("roles and acts_as of a principal are lists of texts")
        object.__setattr__(self, "roles", frozenset(self.roles))
        object.__setattr__(self, "acts_as", tuple(self.acts_as))
        for role in self.roles:
            if role not in ROLES:
                raise InvalidArgument(
                    f"role {role!r}: a principal may {', '.join(ROLES[:-1])} or {ROLES[-1]}"
                )

    def may(self, role: str) -> bool:
        """Return True if they have a role, or one that has it in it."""
        if role == "view":
            return bool(list(self.roles))
        return role in self.roles or "admin" in self.roles


Auth: TypeAlias = Callable[[HTTPConnection], "Principal | Awaitable[Principal | None] | None"]
"""Function of a host: the sender of a request; None for one who may not even look."""


def host_of(request: HTTPConnection) -> str:
    """Return the name by which a request calls this server, in lower case and without a port; empty
    if it is not a name.
    """
    found = _HOST.fullmatch(request.headers.get("host", "").lower())
    return "" if found is None else found[1]


class Login:
    """Base of logins with pages of the console's own.

    Attributes:
        is_secure: True if browsers call the console by https, whatever a proxy reports.
    """

    is_secure = False

    def __call__(self, request: HTTPConnection) -> Principal | None:
        """Return the principal of a session."""
        raise NotImplementedError


class Signer:
    """Signs what a browser keeps: texts of JSON that count for a time, each for one purpose."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, purpose: str, said: Mapping[str, Any], seconds: float) -> str:
        """Return data, signed, with the time until which it counts."""
        return self._of(purpose).dumps({**said, "until": time.time() + seconds})

    def read(self, purpose: str, text: str) -> dict[str, Any] | None:
        """Return what was signed for this purpose; None if it was not, or counts no more."""
        try:
            said: dict[str, Any] = self._of(purpose).loads(text)
        except BadData:
            return None
        return said if said["until"] > time.time() else None

    def _of(self, purpose: str) -> URLSafeSerializer:
        options = {"key_derivation": "hmac", "digest_method": hashlib.sha256}
        return URLSafeSerializer(self._secret, f"pgflow {purpose}", signer_kwargs=options)


class Local(Login):
    """Trusts the user of this machine who opens the link that the console prints there.

    The request must come from this machine, by its own name, and from a browser in which the link
    was opened. A proxy on this machine that lets others through, another user of it, and a page of
    another site in the same browser have all but the link. Behind a declared proxy there is no
    local principal at all.

    Args:
        name: Name of the user; by default the login name.
        roles: Their roles.
        acts_as: Roles that gates ask for.

    Attributes:
        token: Secret of this process: ``/login?token=`` with it lets a browser in.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        roles: Iterable[str] = ("operate", "approve", "admin"),
        acts_as: Iterable[str] = (),
    ) -> None:
        self.principal = Principal(name or _whoever(), roles, acts_as)
        self.token = secrets.token_urlsafe(32)
        self._signer = Signer(secrets.token_bytes(32))

    def __call__(self, request: HTTPConnection) -> Principal | None:
        """Return the principal of a session, if the request is from here."""
        if not self.is_here(request):
            return None
        session = request.cookies.get(self.cookie_of(request), "")
        return self.principal if self._signer.read("local", session) is not None else None

    def is_here(self, request: HTTPConnection) -> bool:
        """Return True if a request comes from this machine, by its own name."""
        is_ours = request.client is not None and request.client.host in LOOPBACK
        return is_ours and host_of(request) in LOCAL_HOSTS

    def cookie_of(self, request: HTTPConnection) -> str:
        """Return the name of the cookie: a browser sends it to all ports of this machine."""
        port = request.headers.get("host", "").rpartition(":")[2]
        return f"{SESSION_COOKIE}_{port}" if port.isdecimal() else SESSION_COOKIE

    def session(self, token: str) -> str | None:
        """Return a session for the token of this process; None for another."""
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return None
        return self._signer.sign("local", {}, SESSION_SECONDS)


def _whoever() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "unknown"


class Tokens(Login):
    """Asks for a token, once in twelve hours.

    Wrong tokens are counted: after five from one place in a minute, the rest of that minute's
    tokens from there are refused unread. A place is the client's address; of IPv6, the network of
    one customer. Behind a declared proxy it is the address that the proxy has seen. A browser in
    which a token was right before is a place of its own, so others cannot lock it out.

    Args:
        tokens: The principal of each token, which has at least 16 characters.

    Raises:
        InvalidArgument: It is empty, or a token is too short.
    """

    def __init__(self, tokens: Mapping[str, Principal]) -> None:
        if not tokens:
            raise InvalidArgument("no tokens: add one for each person who may log in")
        if any(len(token) < MIN_TOKEN_CHARS for token in tokens):
            raise InvalidArgument(
                f"a token needs at least {MIN_TOKEN_CHARS} characters, such as "
                '`python -c "import secrets; print(secrets.token_urlsafe())"` makes'
            )
        self._principals = {_digest(token): principal for token, principal in tokens.items()}
        self._signer = Signer(secrets.token_bytes(32))
        self._failures: OrderedDict[str, list[float]] = OrderedDict()

    def __call__(self, request: HTTPConnection) -> Principal | None:
        """Return the principal of a session."""
        said = self._signer.read("session", request.cookies.get(SESSION_COOKIE, ""))
        return None if said is None else self._principals.get(said["digest"])

    def session(self, token: str, address: str, device: str = "") -> tuple[str, str] | None:
        """Return a session for a token, and the mark of this browser; None for an unknown token.

        Args:
            token: The token.
            address: Address that it came from.
            device: Mark of the browser, if it has one.

        Raises:
            TooManyTokens: Too many wrong ones came before from there.
        """
        known = self._signer.read("device", device)
        place = _place_of(address) if known is None else f"browser of {known['digest']}"
        now = time.monotonic()
        failures = [at for at in self._failures.pop(place, ()) if at > now - FAILURE_SECONDS]
        digest = _digest(token)
        is_right = any([hmac.compare_digest(digest, one) for one in self._principals])  # noqa: C419  all of them: in the same time
        is_locked = len(failures) >= MAX_FAILURES
        if failures or not is_right:
            self._failures[place] = failures if is_right or is_locked else [*failures, now]
            while len(self._failures) > MOST_PLACES:
                self._failures.popitem(last=False)
        if is_locked:
            raise TooManyTokens
        if not is_right:
            return None
        said = {"digest": digest}
        session = self._signer.sign("session", said, SESSION_SECONDS)
        return session, self._signer.sign("device", said, DEVICE_SECONDS)


def _place_of(address: str) -> str:
    """Return what one attacker has: an address, or the network of one of IPv6."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is None:
            return str(ipaddress.ip_network((found, 64), strict=False))
        found = found.ipv4_mapped
    return str(found)


class TooManyTokens(Exception):
    """Too many wrong tokens came in too short a time."""


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
