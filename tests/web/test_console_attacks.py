"""Attacks on the console, each of which must come to nothing."""

from __future__ import annotations

import json
import secrets
import zlib
from collections import deque
from typing import Any

import httpx
import pytest
from clikit import as_role
from records import count, run_row, settle
from schedulekit import setting
from sqlkit import one
from test_console_pages import ANN, FLOWS, PAGES, Order, ask_first, await_payment
from webkit import BASE, Browser, Reader, address, form_of, is_harmless, refuse, tampered

import pgflow
from pgflow import Retries, step, workflow
from pgflow.decisions import Choice, decision
from pgflow.effects import effect
from pgflow.errors import InvalidArgument
from pgflow.testing import AsyncHarness
from pgflow.web import Local, Principal, Tokens, asgi

EVIL = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "'><svg/onload=alert(1)>",
    "</pre></details></code><script>alert(1)</script>", "{{ 7*7 }}{% raw %}${7*7}",
    "javascript:alert(1)", "</textarea><script>alert(1)</script>", "--><script>alert(1)</script>",
)  # fmt: skip
HIDDEN = "invoice\u202e1000\u0007\u200b"


@step(retries=Retries(max_attempts=1))
async def fail(text: str) -> str:
    raise ValueError(text)


@decision()
async def decide(text: str) -> Choice[str]:
    return Choice(text, why=text, evidence=[text], alternatives=[text])


@effect(risk="irreversible")
async def act(text: str) -> str:
    return text


@workflow
async def carry(text: str) -> str:
    pgflow.set_state(note=text)
    pgflow.authority.owe(text[:60], to=text, detail={text: text})
    chosen = await decide(text)
    with pgflow.because(chosen):
        await act(text)
        return repr(await pgflow.authority.gate("ask", {text: text}, approvers=[text, "ann"]))


@workflow
async def carry_rich(text: str) -> str:
    return repr(await pgflow.authority.gate("ask", {"rows": [{text: text}]}))


@workflow
async def burst(text: str) -> str:
    return await fail(text)


@workflow
async def hide(text: str) -> str:
    pgflow.set_state(note=text)
    chosen = await decide(text)
    with pgflow.because(chosen):
        await act(text)
    return repr(await pgflow.authority.gate("ask", {"text": text}))


MOST_PAGES = 220


async def every_page(browser: Browser, keys: list[str]) -> list[tuple[str, Reader]]:
    """Pages that lead from these runs and addresses, those with forms too."""
    seen: dict[str, Reader] = {}
    waiting = deque(
        [*PAGES, *(key if key.startswith("/") else address("/run", key=key) for key in keys)]
    )
    while waiting and len(seen) < MOST_PAGES:
        path = waiting.popleft()
        if path in seen or path.startswith("#") or "live=1" in path:
            continue
        status = await browser.status(path)
        assert status == 200, (path, status)
        assert browser.last is not None
        if browser.last.headers["content-type"].startswith("text/html"):
            seen[path] = Reader(browser.last.text)
            waiting += seen[path].links
    return list(seen.items())


@pytest.mark.full
async def test_nothing_that_is_stored_is_ever_html(aflow, conn):
    aflow.include(carry, carry_rich, burst)
    keys = []
    for n, text in enumerate(EVIL):
        for flow in (carry, carry_rich, burst):
            key = f"{flow.name}-{n}-{text}"
            keys.append(key)
            await aflow.start(flow.options(key=key, labels={f"l{n}": text}), text)
        setting(conn, text, workflow=text, queue=text, why=text, sent_by=text)
        one(conn, "select pgflow.declare_relay(%s, %s, %s)", text, [text], text)
        one(conn, "select pgflow.publish(%s, %s, %s)", text, json.dumps(text), text)
        refuse(conn, text, text)
    await aflow.until_idle()
    browser = Browser(aflow.app, ANN)
    orders = [address("/schedule/order", name=text, verb="trigger") for text in EVIL]
    pages = await every_page(browser, keys + orders)
    assert len(pages) > 60
    kinds = {path.partition("?")[0] for path, _ in pages}
    assert kinds >= {
        *PAGES,
        "/run",
        "/run/order",
        "/gate",
        "/debt",
        "/schedule",
        "/schedule/order",
        "/relay",
    }
    for path, page in pages:
        assert is_harmless(page) == [], path
    everything = "".join(page.text for _, page in pages)
    for text in EVIL:
        assert text in everything or json.dumps(text)[1:-1] in everything, text


@pytest.mark.full
async def test_what_comes_in_an_address_is_no_html_either(aflow):
    browser = Browser(aflow.app, ANN)
    for text in EVIL:
        for path in (
            address("/runs", key=text),
            address("/runs", workflow=text),
            address("/runs", status=text),
            address("/runs", label=text),
            address("/runs", after=text),
            address("/run", key=text),
            address("/gate", gate=text),
            address("/debt", key=text),
            address("/effects", state=text),
            address("/budget", pool=text),
            address("/gates", done=text, mine="1"),
            address("/run/order", key=text, verb=text),
            f"/{text}",
            address("/schedules", state=text),
            address("/schedule", name=text),
            address("/schedule/order", name=text, verb=text),
            address("/relay", name=text),
            address("/queue", name=text),
        ):
            await browser.status(path)
            assert browser.last is not None
            if browser.last.headers["content-type"].startswith("text/html"):
                assert is_harmless(Reader(browser.last.text)) == [], path
            else:
                assert browser.last.headers["content-type"].startswith("text/plain")


@pytest.mark.full
async def test_an_address_may_say_more_than_a_page_asks(aflow):
    browser = Browser(aflow.app, ANN)
    for name in ("path", "request", "self", "said", "link", "mark", "principal", "root_path"):
        page = await browser.get(f"/runs?{name}=x&{name}=y")
        assert is_harmless(page) == []


@pytest.mark.full
async def test_a_key_cannot_look_like_another(aflow):
    aflow.include(*FLOWS)
    await settle(aflow, await_payment.options(key=HIDDEN), "o")
    browser = Browser(aflow.app, ANN)
    page = await browser.get("/runs")
    assert "invoice\ufffd1000\ufffd" in page.text
    assert "\u202e" not in page.text
    (link,) = {one for one in page.links if one.startswith("/run?")}
    assert "invoice" in (await browser.get(link)).text  # and still leads to the run


@pytest.mark.full
async def test_every_answer_forbids_scripts_frames_and_keeping(aflow):
    browser = Browser(aflow.app, ANN)
    for path in (*PAGES, "/nowhere", "/run?key=none", "/run", "/static/../console.py"):
        await browser.status(path)
        assert browser.last is not None
        headers = browser.last.headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert "script-src 'self';" in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["cache-control"] == "no-store"
    cookie = (await Browser(aflow.app, ANN).client.get("/")).headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


async def paused(aflow: AsyncHarness) -> None:
    aflow.include(*FLOWS)
    await settle(aflow, await_payment.options(key="i"), "o")


CANCEL = address("/run/order", key="i", verb="cancel")


@pytest.mark.full
async def test_a_form_of_another_site_does_nothing(aflow, conn):
    await paused(aflow)
    browser = Browser(aflow.app, ANN)
    form = form_of(await browser.get(CANCEL), {})
    post = browser.client.post
    mark = {"mark": form.fields["mark"]}
    own = {"origin": BASE}
    tried = [
        await post(CANCEL, data={}),
        await post(CANCEL, data={"mark": ""}, headers=own),
        await post(CANCEL, data={"mark": "0" * 64}, headers=own),
        await post(CANCEL, data={"mark": "ü" * 64}, headers=own),
        await post(CANCEL, data=mark, headers={"origin": "https://evil.example"}),
        await post(CANCEL, data=mark, headers={"origin": "null"}),
        await post(CANCEL, data=mark, headers={"origin": f"{BASE}.evil.example"}),
        await post(CANCEL, data=mark, headers={**own, "sec-fetch-site": "cross-site"}),
        await post(CANCEL, data=mark, headers={**own, "sec-fetch-site": "same-site"}),
        await post(CANCEL, json=mark, headers=own),
        await post(CANCEL, content=b"mark=%ff" + b"&a" * 500, headers=own),
    ]
    assert [answer.status_code for answer in tried if answer.status_code not in (400, 403)] == []
    await aflow.until_idle()
    assert run_row(conn, "i", "status") == ("waiting",)
    assert await browser.status(CANCEL) == 200  # to look does nothing
    assert run_row(conn, "i", "status") == ("waiting",)
    assert (await browser.send(form)).status_code == 303


@pytest.mark.full
async def test_a_mark_is_of_one_person_in_one_browser(aflow):
    await paused(aflow)
    secret = b"s" * 32
    ann = Browser(aflow.app, ANN, secret=secret)
    form = form_of(await ann.get(CANCEL), {})
    eve = Browser(aflow.app, Principal("eve", ["operate"]), secret=secret)
    await eve.get("/")
    assert (await eve.send(form)).status_code == 403
    eve.client.cookies = ann.client.cookies  # her cookie, his name
    assert (await eve.send(form)).status_code == 403
    other = Browser(aflow.app, ANN, secret=secret)
    await other.get("/")
    assert (await other.send(form)).status_code == 403
    other.client.cookies = ann.client.cookies  # another process of the same host
    assert (await other.send(form)).status_code == 303


@pytest.mark.full
async def test_a_viewer_changes_nothing_whatever_they_send(aflow, conn):
    aflow.include(*FLOWS)
    await aflow.start(await_payment.options(key="i"), "o")
    await settle(aflow, ask_first.options(key="a"), Order("boots", 1, True))
    ann = Browser(aflow.app, ANN)
    page = await ann.get("/run", key="a")
    gate = next(link for link in page.links if link.startswith("/gate?"))
    forms = [*(await ann.get(gate)).forms, *(await ann.get(CANCEL)).forms]
    viewer = Browser(aflow.app, Principal("ann", ["view"]))  # even of the same name
    mark = await _mark(viewer, gate)
    assert await viewer.status(CANCEL) == 403
    for form in forms:
        if form.method == "post":
            answer = await viewer.send(form, mark=mark, why="x", to="eve")
            assert answer.status_code == 403, form
    operator = Browser(aflow.app, Principal("op", ["operate"]))
    approver = Browser(aflow.app, Principal("ap", ["approve"]))
    for form in forms:
        if form.action.startswith("/gate"):
            assert (await operator.send(form, why="x", to="eve")).status_code == 403
        elif form.method == "post":
            assert (await approver.send(form, why="x")).status_code == 403
    await aflow.until_idle()
    assert count(conn, "pgflow.gate_answer") == 0
    assert run_row(conn, "i", "status") == ("waiting",)


async def _mark(browser: Browser, path: str) -> str:
    """The mark of a browser, which a viewer sees in no page: as if it had leaked."""
    await browser.get(path)
    guard: Any = browser.client._transport.app  # type: ignore[attr-defined]
    nonce = browser.client.cookies["pgflow_mark"]
    return str(guard._mark(nonce, Principal("ann", ["view"])))


async def test_a_sender_who_leaves_in_the_middle_of_a_form_is_no_error(aflow):
    browser = Browser(aflow.app, ANN)
    news: deque[Any] = deque([{"type": "http.request", "body": b"sql=", "more_body": True}])
    answers: list[Any] = []

    async def receive() -> Any:
        return news.popleft() if news else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        answers.append(message)

    headers = [(b"host", b"127.0.0.1"), (b"origin", BASE.encode())]
    scope = {"type": "http", "method": "POST", "path": "/sql", "headers": headers}
    scope |= {"query_string": b"", "server": ("127.0.0.1", 80), "scheme": "http"}
    await browser.served(scope, receive, send)
    assert answers[0]["status"] == 400


async def test_nobody_is_let_in_whom_the_host_does_not_know(aflow):
    await paused(aflow)

    async def nobody(_request: Any) -> None:
        return None

    for auth in (nobody, lambda _: Principal("x", [])):
        browser = Browser(aflow.app, auth=auth)
        for path in (*PAGES, "/run?key=i", CANCEL, "/run/value?key=i&value=input"):
            assert await browser.status(path) in (401, 403), path
            assert browser.last is not None
            assert "i" not in browser.last.text.split()
        assert (await browser.client.post(CANCEL, data={})).status_code in (401, 403)


@pytest.mark.parametrize(
    ("client", "headers"),
    [
        ("192.0.2.7", {"host": "127.0.0.1:8421"}),
        ("10.0.0.1", {"host": "localhost", "x-forwarded-for": "127.0.0.1"}),
        ("127.0.0.1", {"host": "evil.example"}),
        ("127.0.0.1", {"host": "127.0.0.1.evil.example"}),
    ],
)
async def test_only_this_machine_by_its_own_name_is_trusted(aflow, client, headers):
    auth = Local("ann")
    served = asgi(aflow.app, auth=auth)

    async def ask(client: str, headers: dict[str, str]) -> int:
        transport = httpx.ASGITransport(served, client=(client, 1))
        async with httpx.AsyncClient(transport=transport, base_url=BASE) as browser:
            link = await browser.get("/login", params={"token": auth.token}, headers=headers)
            name, _, kept = link.headers.get("set-cookie", "").partition(";")[0].partition("=")
            sent = {**headers, "cookie": f"{name}={kept}"}
            return (await browser.get("/runs", headers=sent)).status_code

    assert await ask(client, headers) in (303, 400)
    for name in ("127.0.0.1:8421", "localhost", "[::1]:9", "LOCALHOST:1"):
        assert await ask("127.0.0.1", {"host": name}) == 200, name


@pytest.mark.parametrize(
    "headers",
    [
        {},  # as of nginx, HAProxy, socat, and whatever knows nothing of HTTP
        {"via": "1.1 proxy"},
        {"x-forwarded-proto": "https"},
        {"x-client-ip": "192.0.2.7"},
        {"true-client-ip": "192.0.2.7"},
        {"cf-connecting-ip": "192.0.2.7"},
        {"x-forwarded-for": "127.0.0.1", "x-real-ip": "127.0.0.1"},
    ],
)
async def test_a_proxy_on_this_machine_lets_in_nobody(aflow, headers):
    auth = Local("ann")
    browser = Browser(aflow.app, auth=auth)
    stranger = {"host": "127.0.0.1", **headers}
    for path in ("/", "/runs", "/sql", "/login?token=", "/login?token=" + "x" * 43):
        answer = await browser.client.get(path, headers=stranger)
        assert answer.status_code in (303, 401), path
        assert "ann" not in answer.text
    with pytest.raises(InvalidArgument, match="pass Tokens or Oidc"):
        asgi(aflow.app, auth=auth, behind_proxy=["127.0.0.1"])


async def test_a_host_that_is_not_named_is_not_answered(aflow):
    browser = Browser(aflow.app, ANN, hosts=["ops.example.org"])
    assert await browser.status("/") == 400
    for name in ("ops.example.org:443", "ops.example.org", "OPS.example.org:"):
        answer = await browser.client.get("/", headers={"host": name})
        assert answer.status_code == 200, name
    for name in ("ops.example.org:443@other", "ops.example.org:x", "ops.example.org.", "[::1]x"):
        answer = await browser.client.get("/", headers={"host": name})
        assert answer.status_code == 400, name


async def test_tokens_let_in_whom_they_name_and_wrong_ones_are_counted(aflow):
    tokens = Tokens({"a" * 20: Principal("ann", ["operate"]), "e" * 20: Principal("eve")})
    browser = Browser(aflow.app, auth=tokens)
    assert await browser.status("/runs", key="x") == 303
    assert browser.last is not None
    login = browser.last.headers["location"]
    assert login == "/login?next=%2Fruns%3Fkey%3Dx"
    answer = await browser.submit(login, {}, token="wrong" * 5)
    assert answer.status_code == 401
    assert await browser.status("/runs") == 303
    answer = await browser.submit(login, {}, token="a" * 20)
    assert answer.headers["location"] == "/runs?key=x"
    assert "HttpOnly; SameSite=Strict" in answer.headers["set-cookie"]
    assert "ann" in (await browser.get("/runs")).words
    session = browser.client.cookies["pgflow_session"]
    for wrong in ("", "x", "a.b.c", tampered(session)):
        stranger = Browser(aflow.app, auth=tokens)
        stranger.client.cookies.set("pgflow_session", wrong or "-")
        assert await stranger.status("/runs") == 303
    another = Browser(aflow.app, auth=Tokens({"a" * 20: Principal("ann")}))
    another.client.cookies.set("pgflow_session", browser.client.cookies["pgflow_session"])
    assert await another.status("/runs") == 303  # of another server
    await browser.submit("/runs", {})  # leaves
    assert await browser.status("/runs") == 303
    await refuse_guesses(browser)
    assert (await browser.submit("/login", {}, token="a" * 20)).status_code == 429
    with pytest.raises(InvalidArgument, match="16 characters"):
        Tokens({"short": Principal("x")})
    with pytest.raises(InvalidArgument, match="no token"):
        Tokens({})


async def refuse_guesses(browser: Browser) -> None:
    """Guess until no guess is looked at any more."""
    for n in range(6):
        answer = await browser.submit("/login", {}, token=f"guess {n}" * 3)
    assert answer.status_code == 429


async def test_who_guesses_locks_out_nobody_else(aflow):
    tokens = Tokens({"a" * 20: Principal("ann"), "e" * 20: Principal("eve")})
    behind = Browser(aflow.app, auth=tokens, behind_proxy=["127.0.0.1", "10.0.0.0/8"])
    behind.client.headers["x-forwarded-proto"] = "http"

    def come_from(address: str, **kept: str) -> None:
        behind.client.cookies.clear()
        behind.client.cookies.update(kept)
        behind.client.headers["x-forwarded-for"] = address

    async def enters(token: str) -> int:
        return (await behind.submit("/login", {}, token=token)).status_code

    come_from("192.0.2.9")
    assert await enters("a" * 20) == 303
    device = {"pgflow_device": behind.client.cookies["pgflow_device"]}
    for lied in (
        "192.0.2.8",
        "192.0.2.8:4711",
        "1.1.1.1, 192.0.2.8",
        "192.0.2.9,192.0.2.8, 10.1.1.1",
    ):
        come_from(lied)
        if lied == "192.0.2.8":
            await refuse_guesses(behind)
        assert await enters("a" * 20) == 429, lied
    come_from("192.0.2.9")
    assert await enters("e" * 20) == 303
    come_from("192.0.2.8", **device)  # behind the attacker's address, in a browser that was right
    assert await enters("a" * 20) == 303
    come_from("192.0.2.8", pgflow_device=tampered(device["pgflow_device"]))
    assert await enters("a" * 20) == 429
    come_from("2001:db8::1")
    await refuse_guesses(behind)
    for again in ("2001:db8::ffff", "[2001:db8::ffff]", "[2001:db8::ffff]:443"):
        come_from(again)
        assert await enters("a" * 20) == 429, again
    come_from("2001:db8:0:1::1")
    assert await enters("a" * 20) == 303
    for n in range(60):  # from everywhere
        come_from(f"198.51.100.{n}")
        assert await enters("wrong" * 5) == 401
    come_from("203.0.113.1")
    assert await enters("a" * 20) == 303


async def test_the_word_of_a_proxy_counts_where_it_was_declared(aflow):
    tokens = Tokens({"a" * 20: Principal("ann")})
    for options, said, is_secure in (
        ({}, {"x-forwarded-proto": "https"}, False),
        ({"behind_proxy": ["10.0.0.0/8"]}, {"x-forwarded-proto": "https"}, False),
        ({"behind_proxy": ["127.0.0.1"]}, {"x-forwarded-proto": "https"}, True),
        ({"behind_proxy": ["127.0.0.0/8"]}, {}, True),
        ({"behind_proxy": ["127.0.0.1"]}, {"x-forwarded-proto": "https,http"}, False),
    ):
        browser = Browser(aflow.app, auth=tokens, **options)
        browser.client.headers.update(said)
        answer = await browser.client.get("/login")
        assert ("; Secure" in answer.headers["set-cookie"]) is is_secure, (options, said)
    for wrong in ("example.org", "10.0.0.1/8", ""):
        with pytest.raises(InvalidArgument, match="a proxy is named by"):
            asgi(aflow.app, auth=tokens, behind_proxy=[wrong])


@pytest.mark.parametrize(
    "target",
    [
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "evil",
        "/\r\nset-cookie: a=b",
        "/ü",
    ],
)
async def test_a_login_leads_nowhere_else(aflow, target):
    browser = Browser(aflow.app, auth=Tokens({"a" * 20: Principal("ann")}))
    answer = await browser.submit(address("/login", next=target), {}, token="a" * 20)
    assert answer.headers["location"] == "/"
    assert "a=b" not in str(answer.headers)


@pytest.mark.full
async def test_nothing_of_an_address_becomes_a_header(aflow):
    await paused(aflow)
    browser = Browser(aflow.app, ANN)
    evil = "x\r\nset-cookie: a=b"
    for path in (address("/run", key=evil), address("/runs", key=evil, live="1")):
        await browser.status(path)
        assert browser.last is not None
        assert "a=b" not in str(browser.last.headers)
    form = form_of(await browser.get(address("/run/order", key="i", verb="pause")), {})
    form.action = address("/run/order", key=evil, verb="pause")
    assert (await browser.send(form)).status_code == 404


async def test_paths_lead_to_no_file(aflow):
    browser = Browser(aflow.app, ANN)
    for path in (
        "/static/console.py",
        "/static/../console.py",
        "/static/%2e%2e/console.py",
        "/static//etc/passwd",
        "/static/..%2f..%2fconsole.py",
        "/templates/base.html",
    ):
        assert await browser.status(path) == 404, path
    assert await browser.status("/static/console.css") == 200


@pytest.mark.full
async def test_a_form_that_is_too_long_is_refused(aflow):
    await paused(aflow)
    browser = Browser(aflow.app, ANN)
    form = form_of(await browser.get(CANCEL), {})
    assert (await browser.send(form, why="x" * 5_000_000)).status_code == 413
    assert await browser.status("/runs", key="x" * 20_000) == 414
    assert (await browser.client.put("/runs")).status_code == 405


class Zipped:
    key_id = "zlib"
    hash_key = None

    def encode(self, data: bytes) -> bytes:
        return zlib.compress(data)

    def decode(self, key_id: str, data: bytes) -> bytes:
        return zlib.decompress(data)


@pytest.mark.full
async def test_what_is_encrypted_is_shown_only_by_an_app_with_the_key(aflow, dsn):
    aflow(codec=Zipped())
    aflow.include(hide, burst)
    for flow, key in ((hide, "secret-1"), (burst, "secret-2")):
        await aflow.start(flow.options(key=key), "hush-hush")
    await aflow.until_idle()
    keys = ["secret-1", "secret-2"]
    knows = await every_page(Browser(aflow.app, ANN), keys)
    everything = "".join(page.text for _, page in knows)
    assert "ValueError: hush-hush" in everything
    assert '"text": "hush-hush"' in everything
    async with pgflow.AsyncApp(dsn) as other:
        browser = Browser(other, ANN)
        blind = await every_page(browser, keys)
        for key in keys:
            assert await browser.status("/run/value", key=key, value="input") == 200
            assert browser.last is not None
            assert "hush-hush" not in browser.last.text
    assert [path for path, page in blind if "hush-hush" in page.text] == []
    assert "encoded with key zlib" in "".join(page.text for _, page in blind)


@pytest.mark.full
async def test_the_role_of_the_connection_is_the_last_word(aflow, conn, dsn):
    await paused(aflow)
    role = f"console_auditor_{secrets.token_hex(3)}"
    conn.execute(f"create role {role} login password 'secret'; grant pgflow_auditor to {role}")
    try:
        async with pgflow.AsyncApp(as_role(dsn, role)) as app:
            browser = Browser(app, ANN)
            for path in PAGES:
                await browser.get(path)
            assert "It waits for a signal" in (await browser.get("/run", key="i")).words
            assert (await browser.submit(CANCEL, {})).status_code == 403
    finally:
        conn.execute(f"drop owned by {role}; drop role {role}")
    assert run_row(conn, "i", "status") == ("waiting",)


async def test_a_database_that_is_gone_is_told_without_its_address(aflow):
    app = pgflow.AsyncApp("postgresql://ann:hunter2@127.0.0.1:1/none")
    browser = Browser(app, ANN)
    assert await browser.status("/runs") == 503
    assert browser.last is not None
    assert "hunter2" not in browser.last.text
    assert "127.0.0.1:1" not in browser.last.text
