"""Logins at a provider of OpenID Connect: whoever it names, and nobody whom it has not."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest

pytest.importorskip("authlib", reason="needs authlib, which the extra test has")

from collections.abc import Iterator

from joserfc import jwt
from joserfc.jwk import ECKey, OctKey
from oidckit import CLIENT, SECRET, Provider, provider
from test_console_pages import seen_in
from webkit import BASE, Browser, tampered

from pgflow.errors import InvalidArgument
from pgflow.testing import AsyncHarness
from pgflow.web import Oidc

ROLES = {"ops": ["operate"], "staff": ["view"]}


@pytest.fixture
def known() -> Iterator[Provider]:
    with provider() as found:
        found.claims = {"roles": ["ops", "unknown"]}
        yield found


def console(aflow: AsyncHarness, known: Provider, **options: Any) -> Browser:
    return Browser(aflow.app, auth=auth(known, **options))


def auth(known: Provider, **options: Any) -> Oidc:
    return Oidc(known.issuer, CLIENT, SECRET, address=BASE, roles=ROLES, **options)


async def go(browser: Browser, next_page: str = "/runs?status=failed") -> str:
    """Begin a login, and return the address at the provider to which it leads."""
    assert await browser.status("/login/go", next=next_page) == 303
    assert browser.last is not None
    return browser.last.headers["location"]


async def log_in(browser: Browser, known: Provider) -> int:
    """Log in, and return the status of the last answer."""
    back = known.let_in(await go(browser))
    assert back.startswith(f"{BASE}/login/back?")
    return await browser.status(back.removeprefix(BASE))


@pytest.mark.full
@pytest.mark.parametrize("written", ["", "/"])
async def test_a_provider_whose_name_ends_with_a_slash_is_the_same_however_it_is_written(
    aflow, known, written
):
    known.tail = "/"
    issuer = known.issuer + written
    login = Oidc(issuer, CLIENT, SECRET, address=BASE, roles=ROLES)
    assert await log_in(Browser(aflow.app, auth=login), known) == 200


@pytest.mark.full
async def test_a_provider_says_who_somebody_is_and_what_they_may_do(aflow, known):
    browser = console(aflow, known)
    assert await browser.status("/runs", status="failed") == 303
    assert browser.last is not None
    login = browser.last.headers["location"]
    page = await browser.get(login)
    seen_in(page, "Log in at 127.0.0.1:")
    assert "/login/go?next=%2Fruns%3Fstatus%3Dfailed" in page.links
    address = await go(browser)
    assert "SameSite=Lax" in browser.last.headers["set-cookie"]
    assert "nonce=" in address
    assert await browser.status(known.let_in(address).removeprefix(BASE)) == 200
    assert browser.last.headers["refresh"] == "0; url=/runs?status=failed"
    said = browser.last.headers.get_list("set-cookie")
    assert any("pgflow_session=" in one and "SameSite=Strict" in one for one in said)
    page = await browser.get("/runs", status="failed")
    seen_in(page, "ann@example.org", "Leave")
    assert await browser.status("/sql") == 200
    assert "admin" in (await browser.get("/sql")).words  # who only operates is told who may
    await browser.submit("/runs", {})
    assert await browser.status("/runs") == 303


def forged(claims: dict[str, Any]) -> str:
    """A token that nobody has signed."""
    parts = ({"alg": "none"}, claims)
    texts = [base64.urlsafe_b64encode(json.dumps(p).encode()).decode().rstrip("=") for p in parts]
    return ".".join([*texts, ""])


NOW = int(time.time())
WRONG = (
    {"aud": "another"}, {"aud": "another", "azp": CLIENT}, {"aud": ["another", "third"]}, {"iss": "https://evil.example"},
    {"aud": [CLIENT, "another"], "azp": "another"}, {"nonce": "another"}, {"nonce": None},
    {"exp": NOW - 3600}, {"exp": None}, {"iat": None}, {"sub": None}, {"iat": NOW + 3600},
    {"roles": []}, {"roles": None}, {"roles": ["unknown"]}, {"roles": {"ops": 1}},
    {"email": None}, {"email": " "}, {"email_verified": False},
)  # fmt: skip


@pytest.mark.full
async def test_a_wrong_identity_lets_nobody_in(aflow, known):
    right = known.claims
    browser = console(aflow, known)
    for claims in WRONG:
        known.claims = {**right, **claims}
        assert await log_in(browser, known) == 401, claims
        assert "pgflow_session" not in browser.client.cookies
    assert await browser.status("/runs") == 303


@pytest.mark.full
async def test_an_identity_that_the_provider_has_not_signed_lets_nobody_in(aflow, known):
    public = json.dumps(known.published.as_dict(private=False))
    wrong = ECKey.generate_key("P-256", {"kid": "one"})
    for sign in (
        forged,
        lambda claims: jwt.encode({"alg": "ES256", "kid": "one"}, claims, wrong),
        lambda claims: jwt.encode(
            {"alg": "HS256", "kid": "one"}, claims, OctKey.import_key(public)
        ),
        lambda claims: "no token",
    ):
        known.sign = sign
        assert await log_in(console(aflow, known), known) == 401


@pytest.mark.full
async def test_keys_that_are_new_are_fetched(aflow, known):
    browser = console(aflow, known)
    assert await log_in(browser, known) == 200
    known.key = known.published = ECKey.generate_key("P-256", {"kid": "two"})
    assert await log_in(browser, known) == 401  # but seldom
    browser.served._auth._provider._keys_at = float("-inf")  # type: ignore[attr-defined]
    assert await log_in(browser, known) == 200


@pytest.mark.full
async def test_a_state_counts_once_and_in_the_browser_that_began(aflow, known):
    one = auth(known)
    ann, eve = Browser(aflow.app, auth=one), Browser(aflow.app, auth=one)
    back = known.let_in(await go(ann)).removeprefix(BASE)
    assert await eve.status(back) == 401  # without what ann's browser keeps
    await go(eve)
    assert await eve.status(back) == 401  # with that of a login of her own
    assert await ann.status(back + "x") == 401
    kept = ann.client.cookies["pgflow_login"]
    assert await ann.status(back) == 200
    assert await ann.status(back) == 401
    ann.client.cookies.set("pgflow_login", kept)
    assert await ann.status(back) == 401
    seen_in_words = ann.last.text if ann.last else ""
    assert "This login has ended before." in seen_in_words


@pytest.mark.full
async def test_a_login_that_the_provider_refuses_or_mixes_up_comes_to_nothing(aflow, known):
    for change in ("error=access_denied", "code=another", "iss=https%3A%2F%2Fevil.example"):
        browser = console(aflow, known)
        back = known.let_in(await go(browser)).removeprefix(BASE)
        if "iss" in change:
            back += f"&{change}"
        else:
            back = f"{back.partition('?')[0]}?state={back.rpartition('state=')[2]}&{change}"
        assert await browser.status(back) == 401, change
    known.issuer += "/other"
    broken = Browser(aflow.app, auth=auth(known))
    assert await broken.status("/login/go") == 503


async def test_a_session_of_somebody_is_not_made_by_hand(aflow, known):
    browser = console(aflow, known)
    assert await log_in(browser, known) == 200
    session = browser.client.cookies["pgflow_session"]
    ticket = console(aflow, known)
    await go(ticket)
    for wrong in (tampered(session), "x" + session, "", ".", ticket.client.cookies["pgflow_login"]):
        stranger = console(aflow, known)
        stranger.client.cookies.set("pgflow_session", wrong or "-")
        assert await stranger.status("/runs") == 303


def test_a_provider_is_asked_by_https_only(known):
    for wrong in (
        {"issuer": "http://id.example.org"},
        {"issuer": "id.example.org"},
        {"address": "http://ops.example.org"},
        {"secret": b"short"},
        {"roles": {"ops": ["root"]}},
    ):
        given: dict[str, Any] = {
            "issuer": known.issuer,
            "client_id": CLIENT,
            "address": BASE,
            "roles": ROLES,
            **wrong,
        }
        with pytest.raises(InvalidArgument):
            Oidc(**given)
