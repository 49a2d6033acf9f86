"""Logins by OpenID Connect: a provider identifies the user, and one of its claims gives their
roles.

It uses the authorization code flow, by Authlib, with PKCE, a state and a nonce for each login. The
data that the end of a login needs is in a signed cookie of the browser that began it, and a state
counts once. An identity counts if the provider has signed it for this client and this login, just
now.

Needs ``pip install "pgflow-engine[oidc]"``.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import HTTPConnection

from pgflow.errors import InvalidArgument
from pgflow.web.principals import (
    MIN_SECRET_BYTES,
    SESSION_COOKIE,
    SESSION_SECONDS,
    Login,
    Principal,
    Signer,
)

ALGORITHMS = ["RS256", "ES256", "PS256", "RS384", "ES384", "RS512", "ES512"]
"""Signatures that are taken: those that only the provider can make, and never ``none``."""
LOGIN_SECONDS = 600
"""Time limit of a login at the provider."""
LEEWAY_SECONDS = 60
ANSWER_SECONDS = 10.0
KEYS_SECONDS = 60.0
"""Time after which keys are fetched again if a token names another one."""
MOST_LOGINS = 10_000


class LoginRefused(Exception):
    """A login that failed; its text is for the user."""


@dataclass(frozen=True)
class Begun:
    """A login that has begun.

    Attributes:
        address: Address at the provider where it goes on.
        ticket: Text that the browser keeps until it comes back.
    """

    address: str
    ticket: str


class Oidc(Login):
    """Logs users in at a provider of OpenID Connect, once in twelve hours.

    Args:
        issuer: Address of the provider, by https unless it is this machine.
        client_id: Name by which the provider knows the console.
        client_secret: Secret of that; None for a public client.
        address: Address of the console as browsers see it, such as
            ``https://ops.example.org/pgflow``. The provider must allow ``ADDRESS/login/back``.
        roles: Roles of a principal, by the values of the claim. All others are refused.
        roles_claim: Claim with the values; dots lead into objects: ``realm_access.roles``.
        name_claim: Claim with the name that is recorded.
        scope: Scopes that are asked for.
        secret: At least 32 random bytes, the same in all processes that serve one host.

    Raises:
        ImportError: Authlib is not installed.
        InvalidArgument: An address is not one of https, or the secret is too short.

    Example::

        auth = Oidc(
            "https://id.example.org", "pgflow", os.environ["OIDC_SECRET"],
            address="https://ops.example.org/pgflow",
            roles={"ops": ["operate", "approve"], "staff": ["view"]},
        )
        site.mount("/pgflow", pgflow.web.asgi(app, auth=auth))
    """

    def __init__(
        self,
        issuer: str,
        client_id: str,
        client_secret: str | None = None,
        *,
        address: str,
        roles: Mapping[str, Iterable[str]],
        roles_claim: str = "roles",
        name_claim: str = "email",
        scope: str = "openid email profile",
        secret: bytes | None = None,
    ) -> None:
        _need_authlib()
        if secret is not None and len(secret) < MIN_SECRET_BYTES:
            raise InvalidArgument(f"secret= of a login has at least {MIN_SECRET_BYTES} bytes")
        self._issuer = _checked(issuer.rstrip("/"), "the issuer")
        self._client_id, self._client_secret = client_id, client_secret
        self._back = _checked(address.rstrip("/"), "the address of the console") + "/login/back"
        self._roles = {value: tuple(found) for value, found in roles.items()}
        for found in self._roles.values():
            Principal("anybody", found)
        self._roles_claim, self._name_claim = roles_claim, name_claim
        self._scope = scope
        self._signer = Signer(secret or secrets.token_bytes(32))
        self._provider = _Provider(self._issuer)
        self._used: dict[str, float] = {}

    @property
    def is_secure(self) -> bool:  # type: ignore[override]
        """True if browsers call the console by https."""
        return self._back.startswith("https:")

    @property
    def host(self) -> str:
        """Name of the provider's host, for the button."""
        return urlsplit(self._issuer).netloc

    def __call__(self, request: HTTPConnection) -> Principal | None:
        """Return the principal of a session."""
        said = self._signer.read("session", request.cookies.get(SESSION_COOKIE, ""))
        return None if said is None else Principal(said["name"], said["roles"], said["acts_as"])

    async def begin(self, back: str) -> Begun:
        """Return where a login goes on.

        Args:
            back: Path of the page to show after it.

        Raises:
            LoginRefused: The provider does not answer.
        """
        facts = await self._provider.facts()
        said = {
            "state": secrets.token_urlsafe(24),
            "nonce": secrets.token_urlsafe(24),
            "verifier": secrets.token_urlsafe(48),
            "back": back,
        }
        async with self._client() as client:
            address, _ = client.create_authorization_url(
                facts["authorization_endpoint"],
                state=said["state"],
                nonce=said["nonce"],
                code_verifier=said["verifier"],
            )
        return Begun(address, self._signer.sign("login", said, LOGIN_SECONDS))

    async def end(self, ticket: str, said: Mapping[str, str]) -> tuple[str, str]:
        """Return a session, and the path of the page to show.

        Args:
            ticket: Text that the browser has kept.
            said: Parameters with which the provider has sent it back.

        Raises:
            LoginRefused: It is not the end of a login of this browser, or the identity is wrong.
        """
        begun = self._signer.read("login", ticket)
        if begun is None or not secrets.compare_digest(
            begun["state"].encode(), said.get("state", "").encode()
        ):
            raise LoginRefused("This is not the end of a login that this browser began.")
        self._use(begun["state"])
        issuer = (await self._provider.facts())["issuer"]
        if said.get("iss", issuer) != issuer:
            raise LoginRefused("Another provider has answered.")
        if "code" not in said:
            raise LoginRefused("The provider lets you in nowhere: it has refused the login.")
        principal = self._principal_of(await self._identity(begun, said["code"]))
        kept = {
            "name": principal.name,
            "roles": sorted(principal.roles),
            "acts_as": list(principal.acts_as),
        }
        return self._signer.sign("session", kept, SESSION_SECONDS), begun["back"]

    def _use(self, state: str) -> None:
        """Take note that a login has ended: its state counts once."""
        now = time.monotonic()
        self._used = {one: until for one, until in self._used.items() if until > now}
        if state in self._used or len(self._used) >= MOST_LOGINS:
            raise LoginRefused("This login has ended before. Begin another.")
        self._used[state] = now + LOGIN_SECONDS

    async def _identity(self, begun: Mapping[str, str], code: str) -> dict[str, Any]:
        """Return the claims of the user who logged in."""
        from authlib.common.errors import AuthlibBaseError
        from httpx import HTTPError

        facts = await self._provider.facts()
        try:
            async with self._client() as client:
                token = await client.fetch_token(
                    facts["token_endpoint"],
                    code=code,
                    code_verifier=begun["verifier"],
                    redirect_uri=self._back,
                )
        except (AuthlibBaseError, HTTPError, ValueError) as error:
            raise LoginRefused("The provider does not take this code.") from error
        text = token.get("id_token") if isinstance(token, dict) else None
        if not isinstance(text, str):
            raise LoginRefused("The provider has sent no identity.")
        return await self._verified(text, begun["nonce"], str(token.get("access_token", "")))

    async def _verified(self, text: str, nonce: str, access_token: str) -> dict[str, Any]:
        """Return the claims of an identity that is for this client and this login."""
        from authlib.common.errors import AuthlibBaseError
        from authlib.oidc.core import CodeIDToken
        from joserfc.errors import JoseError

        try:
            found = await self._provider.read(text)
            claims = CodeIDToken(
                found.claims,
                found.header,
                {
                    "iss": {"essential": True, "value": (await self._provider.facts())["issuer"]},
                    "aud": {"essential": True, "value": self._client_id},
                },
                {"nonce": nonce, "client_id": self._client_id, "access_token": access_token},
            )
            claims.validate(leeway=LEEWAY_SECONDS)
        except (AuthlibBaseError, JoseError, ValueError) as error:
            raise LoginRefused("The identity that the provider has sent is not valid.") from error
        return dict(found.claims)

    def _principal_of(self, claims: Mapping[str, Any]) -> Principal:
        """Return the principal of claims.

        Raises:
            LoginRefused: They have no name, or no role that may look.
        """
        name = claims.get(self._name_claim)
        if not isinstance(name, str) or not name.strip():
            raise LoginRefused(
                f"The provider does not say who you are: no claim {self._name_claim}."
            )
        if self._name_claim == "email" and claims.get("email_verified") is False:
            raise LoginRefused("Your provider has not verified your address of mail.")
        found: Any = claims
        for part in self._roles_claim.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        values = [found] if isinstance(found, str) else found if isinstance(found, list) else []
        known = [value for value in values if isinstance(value, str) and value in self._roles]
        if not known:
            raise LoginRefused(f"{name} has no role in this console.")
        return Principal(name, {role for value in known for role in self._roles[value]}, known)

    def _client(self) -> Any:
        from authlib.integrations.httpx_client import AsyncOAuth2Client

        return AsyncOAuth2Client(
            self._client_id,
            self._client_secret,
            scope=self._scope,
            redirect_uri=self._back,
            code_challenge_method="S256",
            timeout=ANSWER_SECONDS,
            token_endpoint_auth_method="client_secret_basic" if self._client_secret else "none",
        )


class _Provider:
    """A provider: its metadata, and the keys with which it signs."""

    def __init__(self, issuer: str) -> None:
        self._issuer = issuer
        self._facts: dict[str, Any] | None = None
        self._keys: Any = None
        self._keys_at = float("-inf")
        self._lock = asyncio.Lock()

    async def facts(self) -> dict[str, Any]:
        """Return its addresses."""
        if self._facts is None:
            found = await self._fetch(f"{self._issuer}/.well-known/openid-configuration")
            names = ("authorization_endpoint", "token_endpoint", "jwks_uri")
            if found.get("issuer", "").rstrip("/") != self._issuer or not all(
                isinstance(found.get(name), str) for name in names
            ):
                raise LoginRefused("The provider says of itself that it is another.")
            for name in names:
                _checked(found[name], f"the provider's {name}")
            self._facts = found
        return self._facts

    async def read(self, text: str) -> Any:
        """Return a token that the provider has signed, by a key that may be new."""
        from joserfc import jwt
        from joserfc.errors import JoseError

        try:
            return jwt.decode(text, await self._read_keys(), algorithms=ALGORITHMS)
        except (JoseError, ValueError):
            if time.monotonic() - self._keys_at < KEYS_SECONDS:
                raise
            self._keys = None
            return jwt.decode(text, await self._read_keys(), algorithms=ALGORITHMS)

    async def _read_keys(self) -> Any:
        from joserfc.jwk import KeySet

        async with self._lock:
            if self._keys is None:
                facts = await self.facts()
                found: Any = await self._fetch(facts["jwks_uri"])
                self._keys, self._keys_at = KeySet.import_key_set(found), time.monotonic()
        return self._keys

    async def _fetch(self, address: str) -> dict[str, Any]:
        """Return a JSON object of the provider.

        Raises:
            LoginRefused: The provider does not send one.
        """
        import httpx

        try:
            async with httpx.AsyncClient(timeout=ANSWER_SECONDS) as client:
                found = (await client.get(address)).raise_for_status().json()
        except (httpx.HTTPError, json.JSONDecodeError) as error:
            raise LoginRefused("The provider does not answer. Try again later.") from error
        if not isinstance(found, dict):
            raise LoginRefused("The provider does not answer as one of OpenID Connect.")
        return found


def _checked(address: str, what: str) -> str:
    """Return an address that is safe from eavesdropping: https, or this machine.

    Raises:
        InvalidArgument: It is not.
    """
    parts = urlsplit(address)
    is_here = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if not parts.netloc or parts.scheme not in (("http", "https") if is_here else ("https",)):
        raise InvalidArgument(f"{what} is an address of https, not {address!r}")
    return address


def _need_authlib() -> None:
    try:
        import authlib  # noqa: F401
        import httpx  # noqa: F401
    except ImportError as error:
        raise ImportError(
            f'pgflow.web.Oidc needs {error.name}: pip install "pgflow-engine[oidc]"',
            name=error.name,
        ) from error
