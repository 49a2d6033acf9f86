"""``pgflow web``: served on this machine, to others with tokens only, until it is asked to stop."""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import socketserver
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Thread
from typing import Any

import pytest
from chromium import Chromium, chromium
from clikit import finish, pgflow, process
from records import SOON, run_row, settle
from schedulekit import setting
from servers import HANG_SECONDS, wait_until
from sqlkit import one
from test_console_orders import _answers, tries
from test_console_pages import FLOWS, PAGES, Order, ask_first, await_payment, checkout, pay, ship
from webkit import refuse

pytest.importorskip("uvicorn", reason="needs uvicorn, which the extra test has")


class Address(str):
    """The address of a console.

    Attributes:
        link: The link that lets in whoever sits here.
    """

    __slots__ = ("link",)
    link: str


@contextlib.contextmanager
def console(dsn: str, *options: str) -> Iterator[tuple[Address, subprocess.Popen[str]]]:
    """The console in a process of its own, and its address; :func:`fetch` has opened its link."""
    served = process(dsn, "web", "--port", "0", *options)
    try:
        assert served.stderr is not None
        said = served.stderr.readline()
        found = re.search(r"(http://\S+:\d+)(/login\S+)?", said)
        assert found, said + served.stderr.read()
        address = Address(found[1])
        address.link = found[0]
        if found[2]:
            assert fetch(address.link)[0] == 200
        yield address, served
    finally:
        if served.poll() is None:
            served.kill()
            served.communicate()


_browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())


def fetch(url: str, **headers: str) -> tuple[int, str]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with _browser.open(request, timeout=HANG_SECONDS) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_it_serves_this_machine_until_it_is_asked_to_stop(dsn):
    with console(dsn, "--read-only") as (url, served):
        assert url.startswith("http://127.0.0.1:")
        status, page = fetch(url)
        assert (status, "Nothing needs you." in page) == (200, True)
        assert fetch(url, Host="evil.example")[0] == 400
        assert fetch(f"{url}/static/icon.svg")[0] == 200
        served.send_signal(signal.SIGTERM)
        assert finish(served).code == 0


class Forwarder(socketserver.BaseRequestHandler):
    """A proxy that passes on what comes, and adds nothing."""

    port = 0

    def handle(self) -> None:
        with socket.create_connection(("127.0.0.1", self.port)) as inner:
            inner.sendall(self.request.recv(65_536))
            while part := inner.recv(65_536):
                self.request.sendall(part)


def test_whoever_comes_through_a_proxy_has_no_link(dsn):
    with console(dsn) as (url, _), socketserver.TCPServer(("127.0.0.1", 0), Forwarder) as proxy:
        Forwarder.port = int(url.rpartition(":")[2])
        Thread(target=proxy.serve_forever, daemon=True).start()
        outside = f"http://127.0.0.1:{proxy.server_address[1]}"
        try:
            for host in (url.removeprefix("http://"), "localhost"):
                request = urllib.request.Request(
                    outside, headers={"host": host, "connection": "close"}
                )
                stranger = urllib.request.build_opener(StaysHere)
                with stranger.open(request, timeout=HANG_SECONDS) as answer:
                    assert (answer.status, answer.headers["location"]) == (303, "/login?next=%2F")
        finally:
            proxy.shutdown()


class StaysHere(urllib.request.HTTPErrorProcessor):
    """An opener that follows no redirect."""

    def http_response(self, request: Any, response: Any) -> Any:
        return response


@pytest.mark.full
def test_a_page_that_the_database_does_not_answer_ends_with_the_console(dsn, conn):
    with console(dsn) as (url, served), conn.transaction(), ThreadPoolExecutor() as elsewhere:
        conn.execute("lock table pgflow.worker in access exclusive mode")
        page = elsewhere.submit(fetch, f"{url}/workers")
        wait_until(lambda: one(conn, WAITING), "the page waits for the lock")
        served.send_signal(signal.SIGTERM)
        answer = finish(served)
        assert page.result() == (503, "This server stops: load the page again later.")
        assert answer.code == 0
        assert len(answer.err.splitlines()) == 1, answer.err
        assert "Cancel 1 running task(s)" in answer.err


WAITING = """
select exists (select from pg_locks where not granted and relation = 'pgflow.worker'::regclass)
"""


@pytest.mark.full
def test_others_come_in_with_tokens_only(dsn, tmp_path):
    for options in (["--host", "0.0.0.0"], ["--behind-proxy", "127.0.0.1"]):
        answer = pgflow(dsn, "web", *options)
        assert (answer.code, "--tokens FILE" in answer.err) == (2, True)
    tokens = tmp_path / "tokens.toml"
    for text, says in (
        ("[ann", "is not TOML"),
        ("", "no tokens"),
        ("[ann]\ntoken = 'short'", "16 characters"),
        ("[ann]\nroles = ['view']", "a table with token"),
        ("[ann]\ntoken = 'aaaaaaaaaaaaaaaaaaaa'\nroles = ['root']", "role 'root'"),
        (
            "[ann]\ntoken = 'aaaaaaaaaaaaaaaaaaaa'\n[bob]\ntoken = 'aaaaaaaaaaaaaaaaaaaa'",
            "bob has the token of ann",
        ),
    ):
        tokens.write_text(text)
        answer = pgflow(dsn, "web", "--tokens", str(tokens))
        assert (answer.code, says in answer.err) == (2, True), answer.err
    answer = pgflow(dsn, "web", "--tokens", str(tmp_path / "none.toml"))
    assert answer.code == 2
    answer = pgflow(dsn, "web", "--tokens", str(tokens), "--read-only")
    assert answer.code == 2
    tokens.write_text("[ann]\ntoken = 'aaaaaaaaaaaaaaaaaaaa'\nroles = ['operate']\n")
    with console(dsn, "--tokens", str(tokens), "--allow-host", "127.0.0.1") as (url, _):
        status, page = fetch(f"{url}/runs")
        assert (status, "Who are you?" in page) == (200, True)


def test_a_port_that_is_taken_is_told(dsn):
    with console(dsn) as (url, _):
        answer = finish(process(dsn, "web", "--port", url.rpartition(":")[2]))
        assert (answer.code, "nothing can listen at 127.0.0.1" in answer.err) == (2, True)


@pytest.mark.full
@pytest.mark.parametrize("missing", ["starlette", "jinja2", "uvicorn"])
def test_without_the_extra_it_says_what_to_install(missing):
    code = (
        f"import sys; sys.modules[{missing!r}] = None; from pgflow_cli.commands import run; "
        "sys.exit(run(['web']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f'pgflow: this needs {missing}: pip install "pgflow-engine[web]"\n'


def too_wide(browser: Chromium, width: int) -> str | None:
    """The element of a page that makes it wider than the screen; None if there is none."""
    if browser.ask("document.documentElement.scrollWidth") <= width:
        return None
    return str(
        browser.ask(
            "[...document.querySelectorAll('main *')].filter("
            f"e => e.getBoundingClientRect().right > {width}).map(e => e.outerHTML)[0]"
        )
    )


@pytest.mark.full
@pytest.mark.parametrize("has_scripts", [True, False], ids=["scripts", "no scripts"])
def test_a_person_mends_what_home_shows(flow, conn, dsn, has_scripts):
    flow.include(*FLOWS, tries)
    _answers.clear()
    asked = flow.start(ask_first.options(key="ask-1"), Order("boots", 20, True))
    flow.start(await_payment.options(key="invoice-1"), "o")
    settle(flow, tries.options(key="tries-1"))
    with console(dsn, "--as", "ops") as (url, _), chromium() as browser:
        browser.open(url.link)
        browser.look(1280, 900)
        browser.run_scripts(of_pages=has_scripts)
        browser.open(url)
        assert "ask_first ask-1 asks ann, ops." in browser.words
        browser.press("Answer it")
        browser.unfold("Edit, then approve")
        browser.fill('[name="value:/qty"]', "2")
        browser.press("Approve as edited")
        assert "Approved." in browser.words
        flow.until_idle()
        assert "qty=2" in asked.result(SOON)
        _answers.append("here")
        browser.open(url)
        browser.press("Read its error")
        assert "ConnectionError: no answer" in browser.words
        browser.press("Retry")
        browser.fill('[name="why"]', "the line is mended")
        browser.press("Retry")
        assert "The run will try again." in browser.words
        flow.until_idle()
        assert flow.app.get("tries-1", tries).result(SOON) == "here"
        browser.press("Runs")
        browser.press("invoice-1")
        browser.press("Cancel")
        browser.press("Cancel for good")
        flow.until_idle()
        assert run_row(conn, "invoice-1", "status") == ("cancelled",)
        assert browser.complaints == []


@pytest.mark.full
def test_pages_fit_a_desk_and_a_phone_light_and_dark(flow, conn, dsn):
    flow.include(*FLOWS)
    flow.start(checkout.options(key="order/" + "x" * 120), Order("y" * 500, 1, True))
    flow.start(ask_first.options(key="ask-1"), Order("boots", 20, True))
    flow.start(ship.options(key="ship-1"), "lost")
    settle(flow, pay.options(key="pay-1"), 7)
    setting(conn, "nightly", why="z" * 200, workflow="w" * 90)
    one(conn, "select pgflow.declare_relay('mailer', array['orders'], %s)", "https://" + "x" * 200)
    one(conn, "select pgflow.publish('orders', %s)", '"' + "y" * 300 + '"')
    refuse(conn, "mailer", "no " + "z" * 300)
    with console(dsn) as (url, _), chromium() as browser:
        browser.open(url.link)
        for width, dark in ((1280, False), (390, True)):
            browser.look(width, 900, dark=dark)
            for path in (*PAGES, "/schedule?name=nightly", "/relay?name=mailer"):
                browser.open(url + path)
                assert too_wide(browser, width) is None, (path, width)
            for name in ("order/" + "x" * 120, "pay-1"):
                browser.open(f"{url}/run?key={name}")
                assert too_wide(browser, width) is None, (name, width)
                assert browser.ask("document.querySelectorAll('.waterfall rect').length") > 0
            seen = browser.ask("getComputedStyle(document.body).backgroundColor")
            assert (seen == "rgb(20, 22, 24)") is dark
        assert browser.complaints == []
