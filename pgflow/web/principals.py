"""Principals: who looks, and what they may do.

The console never decides who somebody is. A host that mounts it knows its users, and says so by a
function. Where nobody does there are ways of its own: :class:`Local` trusts whoever sits at the
machine, :class:`Tokens` asks for a token, and :class:`pgflow.web.Oidc` asks a provider. Both keep
the answer in a signed cookie.
"""

from __future__ import annotations

import base64
import getpass
import hashlib
import hmac
import json
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from starlette.requests import HTTPConnection

from pgflow.errors import InvalidArgument

Role = Literal["view", "operate", "approve", "admin"]
"""Things that a principal may do: look; give orders to runs and close what is owed; answer gates;
and all of it, with what pools allow.
"""

ROLES: tuple[str, ...] = get_args(Role)

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
LOOPBACK = ("127.0.0.1", "::1")
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
"""Headers by which a proxy says that somebody else is asking."""

MIN_TOKEN_CHARS = 16
MIN_SECRET_BYTES = 32
SESSION_SECONDS = 12 * 3600
MAX_FAILURES = 5
"""Wrong tokens from one address, and..."""
MAX_FAILURES_OF_ALL = 50
"""...from all of them, after which no token is looked at until..."""
FAILURE_SECONDS = 60.0
"""...so long after the first of them."""

SESSION_COOKIE = "pgflow_session"


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
"""Function of a host: who sends a request; None for somebody who may not even look."""


class Local:
    """Trusts whoever asks from this machine, by its own name and not through a proxy.

    Another page in the same browser cannot pass for them: its requests come from another origin, or
    under a name that is not this machine's.

    Args:
        name: Their name; whoever is logged in if not given.
        roles: Their roles.
        acts_as: Roles that gates ask for.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        roles: Iterable[str] = ("operate", "approve", "admin"),
        acts_as: Iterable[str] = (),
    ) -> None:
        self.principal = Principal(name or _whoever(), roles, acts_as)

    def __call__(self, request: HTTPConnection) -> Principal | None:
        """Return the principal, if the request is from here."""
        if request.client is None or request.client.host not in LOOPBACK:
            return None
        if any(name in request.headers for name in FORWARDED):
            return None
        return self.principal if host_of(request) in LOCAL_HOSTS else None


def _whoever() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "somebody"


def host_of(request: HTTPConnection) -> str:
    """Return the name by which a request calls this server, in lower case and without a port."""
    said = request.headers.get("host", "").lower()
    if said.startswith("["):
        return said.partition("]")[0] + "]"
    return said.partition(":")[0]


class Login:
    """Base of those that ask who somebody is by pages of the console's own."""

    def __call__(self, request: HTTPConnection) -> Principal | None:
        """Return the principal of a session."""
        raise NotImplementedError


class Signer:
    """Signs what a browser keeps: texts of JSON that count for a time, each for one purpose."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def sign(self, purpose: str, said: Mapping[str, Any], seconds: float) -> str:
        """Return what is said, signed, with the time until which it counts."""
        text = json.dumps({**said, "until": time.time() + seconds})
        kept = base64.urlsafe_b64encode(text.encode()).decode()
        return f"{kept}.{self._mac(purpose, kept)}"

    def read(self, purpose: str, text: str) -> dict[str, Any] | None:
        """Return what was signed for this purpose; None if it was not, or counts no more."""
        kept, _, mac = text.rpartition(".")
        if not hmac.compare_digest(self._mac(purpose, kept).encode(), mac.encode()):
            return None
        said: dict[str, Any] = json.loads(base64.urlsafe_b64decode(kept))
        return said if said["until"] > time.time() else None

    def _mac(self, purpose: str, kept: str) -> str:
        signed = f"pgflow {purpose} {kept}".encode()
        return hmac.new(self._secret, signed, hashlib.sha256).hexdigest()


class Tokens(Login):
    """Asks for a token, once in twelve hours.

    Wrong tokens are counted: after five from one address in a minute, none is looked at for the
    rest of it.

    Args:
        tokens: The principal of each token, which has at least 16 characters.

    Raises:
        InvalidArgument: There is none, or one is too short.
    """

    def __init__(self, tokens: Mapping[str, Principal]) -> None:
        if not tokens:
            raise InvalidArgument("there is no token: nobody could look")
        if any(len(token) < MIN_TOKEN_CHARS for token in tokens):
            raise InvalidArgument(
                f"a token has at least {MIN_TOKEN_CHARS} characters, such as "
                '`python -c "import secrets; print(secrets.token_urlsafe())"` makes'
            )
        self._principals = {_digest(token): principal for token, principal in tokens.items()}
        self._secret = secrets.token_bytes(32)
        self._failures: deque[tuple[float, str]] = deque()

    def __call__(self, request: HTTPConnection) -> Principal | None:
        """Return the principal of a session."""
        session = request.cookies.get(SESSION_COOKIE, "")
        said, _, mac = session.rpartition(".")
        if not hmac.compare_digest(self._mac(said).encode(), mac.encode()):
            return None
        digest, _, until = said.partition(".")
        return self._principals.get(digest) if float(until) > time.time() else None

    def session(self, token: str, address: str) -> str | None:
        """Return a session for a token; None if nobody has it.

        Args:
            token: The token.
            address: Address that it came from.

        Raises:
            TooManyTokens: Too many wrong ones came before.
        """
        now = time.monotonic()
        while self._failures and self._failures[0][0] <= now - FAILURE_SECONDS:
            self._failures.popleft()
        of_this = sum(one == address for _, one in self._failures)
        if of_this >= MAX_FAILURES or len(self._failures) >= MAX_FAILURES_OF_ALL:
            raise TooManyTokens
        digest = _digest(token)
        if not any(hmac.compare_digest(digest, known) for known in self._principals):
            self._failures.append((now, address))
            return None
        said = f"{digest}.{time.time() + SESSION_SECONDS:.0f}"
        return f"{said}.{self._mac(said)}"

    def _mac(self, said: str) -> str:
        signed = b"pgflow session " + said.encode()
        return hmac.new(self._secret, signed, hashlib.sha256).hexdigest()


class TooManyTokens(Exception):
    """Too many wrong tokens came in too short a time."""


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
