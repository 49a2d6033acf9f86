"""Passwords that a text quotes are masked, in Python and in SQL alike, and nothing else is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlkit import one

from pgflow._model.exceptions import clean, encode_error
from pgflow.texts import without_secrets, without_secrets_in

PW = "hunter2canary"

QUOTING = [
    f"connection to postgresql://app:{PW}@db/x failed", f"redis://:{PW}@cache:6379/0",
    f"amqps://a.b:{PW}%40x@mq/%2f, and https://bot:{PW}@example.org/a?b=c",
    f"postgresql+psycopg://app:{PW}/with@signs@db/x", f"postgresql://app:{PW}'quoted\"{PW}@db/x",
    f"postgresql://app:0<{PW}@db/x", f"postgresql://app:5432/{PW}@db/x, postgresql://app:1'{PW}@db",
    f"postgresql://db/x?user=a&password={PW}", f"host=db password={PW} dbname=x",
    f"host=db PASSWORD = '{PW} with spaces' dbname=x", f"host=db password='{PW} is never closed",
    f"connect(host='db', password='{PW}', port=1)", f'connect(host="db", password="{PW}")',
    f"PGPASSWORD={PW} psql", f"db_password={PW}", f"{{'user': 'a', 'password': '{PW}'}}",
    f'{{"user": "a", "password": "{PW}", "x": 1}}',
    json.dumps({"body": json.dumps({"password": f"{PW} a"})}), f"alter role app password '{PW}'",
    f"client_secret={PW}", f"Driver=x;Uid=a;Pwd={PW};Server=b", f"AWS_SECRET_ACCESS_KEY={PW}",
    f"export OPENAI_API_KEY='{PW}'", f"{{'DB_PASS': '{PW}'}}", f"x-api-key: {PW}",
    f"Set-Cookie: session={PW}; Path=/", f"clientSecret={PW} and session_token={PW}",
    f"AccountKey={PW};EndpointSuffix=x", f"Authorization: Basic {PW}",
    f"{{'Authorization': 'Bearer {PW}'}}", f"password: {PW}",
]  # fmt: skip
IN_PYTHON = [
    f"[(b'authorization', b'Bearer {PW}')]", f"('authorization', 'token {PW}')", f"got Bearer {PW}",
    f"GET https://h/x?access_token={PW}&b=1", f"https://h/x?X-Amz-Signature={PW}",
    f"['mysql', '--password', '{PW}']", f"deploy --api-key {PW} --now",
    f"-----BEGIN RSA PRIVATE KEY-----\n{PW}\n-----END RSA PRIVATE KEY-----",
    f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.{PW}",
]  # fmt: skip
HARMLESS = [
    "a step failed", "password authentication failed for user 'app'",
    "at http://localhost:8080/runs, ask ann", "see https://example.org/a?b=c#d",
    "mail ann@example.org", "postgresql://app@db/orders", "a://b", "x = 1",
    "unexpected token = '}', max_tokens=100",
    "no bearer authentication, and the api key is missing",
    "duplicate key value violates unique constraint: Key (id)=(1)",
    "key=order-7, idempotency key=order-7, https://h/runs?key=order-7", "KeyError: 'session_token'",
    "it may hold a password: pass a URL", "secret: variable HOOK_SECRET is not set",
    "task-disk-2026-orders-by-customer-of-ACME, risk_live_of_something_else",
    "sk-orders-2026-of-a-customer, ghp_short, SG.1, npm_install_of_packages",
]  # fmt: skip


ABC = "aB3dEf6hIj9lMn2pQr5tUv8xYz1cDe4gHi7kLm0o"
NAMELESS = [
    *("AKIAIOSFODNN7EXAMPLE", f"AIza{ABC[:35]}", f"ghp_{ABC[:36]}", f"github_pat_{ABC}"),
    *(f"glpat-{ABC[:20]}", f"xoxb-123456789012-{ABC[:24]}", f"sk_live_{ABC[:24]}"),
    *(f"rk_test_{ABC[:24]}", f"whsec_{ABC[:32]}", f"sk-proj-{ABC}", f"sk-ant-api03-{ABC}"),
    *(f"hf_{'aBcDeFgHiJ' * 3}kLmN", f"npm_{ABC[:36]}", f"SG.{ABC[:22]}.{ABC}"),
]


@pytest.mark.parametrize("token", NAMELESS, ids=[one[:6] for one in NAMELESS])
@pytest.mark.parametrize("text", ["refused: {}", "ValueError('{}')", '["{}"]', "x={}&y=1", "{}"])
def test_a_token_that_has_no_name_is_masked_by_its_prefix(text: str, token: str) -> None:
    masked = without_secrets(text.format(token))
    assert masked == text.format("***")
    assert without_secrets(masked) == masked


@pytest.mark.parametrize("text", QUOTING + IN_PYTHON)
def test_a_password_is_masked(text):
    masked = without_secrets(text)
    assert PW not in masked
    assert "***" in masked
    assert without_secrets(masked) == masked


@pytest.mark.parametrize("text", HARMLESS)
def test_a_text_without_one_stays_as_it_is(text):
    assert without_secrets(text) == text


WITHOUT_SPACE = st.text(
    st.characters(blacklist_categories=["Z", "C"], blacklist_characters="@"), min_size=1
)


@given(before=st.text(max_size=20), password=WITHOUT_SPACE, after=st.text(max_size=20))
def test_a_password_of_a_url_is_masked_whatever_it_is_made_of(before, password, after):
    text = f"{before} postgresql://app:{password}{PW}@db {after}"
    assert PW not in without_secrets(text)


@given(st.text(), st.integers(1, 200))
def test_a_text_is_masked_before_it_is_cut(password, limit):
    url = f"x postgresql://app:{PW}{'y' * 1000}@db"
    assert PW not in clean(url, limit)
    assert clean(password, limit) is not None


class Refused(Exception):
    def __init__(self, text: str, **more: Any) -> None:
        super().__init__(text, more)
        self.dsn = text
        self.password = PW
        self.more = more


def connect() -> None:
    try:
        raise ConnectionError("postgresql://app:hunter2canary@db/x")
    except ConnectionError as error:
        raise Refused(
            f"password={PW}", params={"password": PW, "deep": [f"redis://:{PW}@c"]}
        ) from error


def test_nothing_of_a_recorded_error_quotes_a_password():
    with pytest.raises(Refused) as raised:
        connect()
    recorded = encode_error(raised.value)
    assert PW not in json.dumps(recorded)
    assert recorded["fields"]["password"] == "***"
    assert recorded["args"][1]["params"]["deep"] == ["redis://:***@c"]
    assert recorded["cause"]["message"] == "postgresql://app:***@db/x"
    assert any("ConnectionError(" in line for line in recorded["cause"]["traceback"])


def test_what_no_password_is_in_comes_back_as_it_was():
    value = {"a": [1, None, 2.5, "b"], "c": {"d": True}}
    assert without_secrets_in(value) == value


@pytest.mark.parametrize("text", [t for t in QUOTING if "Pwd=" not in t and "body" not in t])
def test_a_reason_that_is_given_in_sql_is_masked(db, text):
    assert PW not in one(db, "select pgflow.told_(%s, 4096)", text)


def test_a_reason_without_one_is_only_cut(db):
    for text in HARMLESS:
        assert one(db, "select pgflow.told_(%s, 4096)", text) == text
    assert one(db, "select pgflow.told_('abc', 2)") == "ab"
    assert one(db, "select pgflow.told_(null, 2)") is None


@pytest.mark.parametrize(
    "part", ["a-", "a.", "a://b:", "a-password-", "\\", '"', "'a", "pwd ", "x@"]
)
def test_a_text_is_read_once_however_long_it_is(part):
    """A search that reads the rest from each place would take an hour."""
    long = part * 100_000
    found = without_secrets(f"{long} postgresql://app:hunter2@db")
    assert found == f"{long} postgresql://app:***@db"
