"""Orders that people give in the console are asked for once, done, and recorded with a name."""

from __future__ import annotations

import pytest
import servers
from records import SOON, run_row, settle
from schedulekit import setting
from sqlkit import one
from test_console_pages import (
    ANN,
    FLOWS,
    Order,
    agent,
    ask_first,
    await_payment,
    contract,
    long,
    seen_in,
    ship,
)
from webkit import Browser, Reader, address, form_of

from pgflow import Retries, step, workflow
from pgflow.authority import Pool
from pgflow.web import Principal
from pgflow.web.console import WRITES

BOB = Principal("bob", ["operate"])
GATES = Principal("dora", ["approve"], acts_as=["ops"])
WATCHER = Principal("eve", ["view"])

_answers: list[str] = []


@step(retries=Retries(max_attempts=1))
async def unsteady() -> str:
    if not _answers:
        raise ConnectionError("no answer")
    return _answers[0]


@workflow
async def tries() -> str:
    return await unsteady()


def order_to(key: str, verb: str) -> str:
    return address("/run/order", key=key, verb=verb)


async def gate_page(browser: Browser, key: str) -> str:
    """Address of the gate of a run."""
    page = await browser.get("/run", key=key)
    return next(link for link in page.links if link.startswith("/gate?"))


@pytest.mark.full
async def test_a_run_is_paused_resumed_and_cancelled_by_a_name(aflow, conn):
    aflow.include(*FLOWS)
    await settle(aflow, await_payment.options(key="invoice 1"), "o")
    browser = Browser(aflow.app, BOB)
    page = await browser.get(order_to("invoice 1", "pause"))
    assert "nothing new starts until it is resumed" in page.words
    assert "pgflow pause 'invoice 1'" in page.words
    assert "select pgflow.pause_run('invoice 1', why => 'WHY', sent_by => 'bob');" in page.words
    answer = await browser.submit(order_to("invoice 1", "pause"), {}, why="finance asks")
    assert answer.headers["location"] == "/run?key=invoice+1&done=pause"
    assert "The run will pause." in (await browser.get(answer.headers["location"])).words
    await aflow.until_idle()
    found = run_row(conn, "invoice 1", "status, reason, reason_detail->>'by'")
    assert found == ("paused", "finance asks", "bob (postgres)")
    answer = await browser.submit(order_to("invoice 1", "pause"), {})
    assert (answer.status_code, "is paused: pause fits queued" in answer.text) == (409, True)
    await browser.submit(order_to("invoice 1", "resume"), {})
    await aflow.until_idle()
    assert run_row(conn, "invoice 1", "status") == ("waiting",)
    page = await browser.get(order_to("invoice 1", "cancel"))
    assert "Cancelled is final." in page.words
    await browser.submit(order_to("invoice 1", "cancel"), {}, why="ordered twice")
    await aflow.until_idle()
    found = run_row(conn, "invoice 1", "status, reason, reason_detail->>'by'")
    assert found == ("cancelled", "ordered twice", "bob (postgres)")
    page = await browser.get("/run", key="invoice 1")
    assert not [link for link in page.links if link.startswith("/run/order")]
    page = await browser.get(order_to("invoice 1", "cancel"))
    assert "this will be refused" in page.words


@pytest.mark.full
async def test_a_page_says_what_no_worker_has_taken_yet(aflow, conn):
    aflow.include(*FLOWS)
    await settle(aflow, await_payment.options(key="i"), "o")
    await aflow.crash()
    await aflow.app.get("i", await_payment).cancel(why="ordered twice", by="ann")
    words = (await Browser(aflow.app, BOB).get("/run", key="i")).words
    assert "Asked to cancel by ann (postgres)" in words
    assert "ordered twice" in words


@pytest.mark.full
async def test_a_failed_run_is_retried_from_the_step_that_failed(aflow, conn):
    aflow.include(tries)
    _answers.clear()
    await settle(aflow, tries.options(key="t"))
    browser = Browser(aflow.app, BOB)
    assert "ConnectionError: no answer" in (await browser.get("/run", key="t")).words
    _answers.append("here")
    answer = await browser.submit(order_to("t", "retry"), {}, why="the line is mended")
    assert answer.status_code == 303
    await aflow.until_idle()
    assert await aflow.app.get("t", tries).result(SOON) == "here"
    by = "select payload->>'by' from pgflow.timeline where key = 't' and payload->>'by' is not null"
    assert ("bob (postgres)",) in conn.execute(by).fetchall()


@pytest.mark.full
async def test_a_run_is_taken_back_and_forked_with_another_input(aflow, conn):
    aflow.include(*FLOWS)
    run = await settle(aflow, long.options(key="l"), 3)
    browser = Browser(aflow.app, BOB)
    page = await browser.get("/run", key="l")
    path = next(link for link in page.links if link.startswith("/run/again") and "at=2" in link)
    page = await browser.get(path)
    assert "Its journal is kept up to unit 2" in page.words
    assert "select pgflow.rewind_run('l', to_seq => 2, sent_by => 'bob');" in page.words
    answer = await browser.submit(path, {"verb": "rewind"}, effects="repeat", why="once more")
    assert answer.headers["location"] == "/run?key=l&done=rewind"
    await aflow.until_idle()
    assert await run.result(SOON) == 3
    assert run_row(conn, "l", "generation") == (2,)
    answer = await browser.submit(
        address("/run/again", key="l", at="0"),
        {"verb": "fork"},
        new_key="m",
        effects="repeat",
        input='{"steps": 1}',
    )
    assert answer.headers["location"] == "/run?key=m&done=fork"
    await aflow.until_idle()
    assert await aflow.app.get("m", long).result(SOON) == 1
    path = address("/run/again", key="l", at="0")
    for wrong in ({"at": "x"}, {"effects": "undo"}, {"input": "[1]"}, {"input": "{"}):
        assert (await browser.submit(path, {"verb": "fork"}, **wrong)).status_code == 400, wrong
    said = conn.execute(
        "select payload->>'by' from pgflow.timeline where payload->>'by' is not null"
    ).fetchall()
    assert said
    assert set(said) == {("bob (postgres)",)}


@pytest.mark.full
async def test_many_runs_are_told_at_once_and_exactly_those_that_were_shown(aflow, conn):
    aflow.include(*FLOWS)
    for n in range(30):
        await aflow.start(await_payment.options(key=f"i-{n:02}", labels={"batch": str(n % 2)}), "o")
    await settle(aflow, long.options(key="i-done", labels={"batch": "1"}), 0)
    browser = Browser(aflow.app, BOB)
    page = await browser.get("/runs", label="batch=1")
    path = next(link for link in page.links if link.startswith("/runs/order?verb=cancel"))
    page = await browser.get(path)
    assert "Cancel 15 runs for good" in page.words
    assert "i-done" not in page.words
    assert "pgflow cancel --label batch=1" in page.words
    form = next(form for form in page.forms if "keys" in form.fields)
    await aflow.start(await_payment.options(key="i-new", labels={"batch": "1"}), "o")
    await aflow.app.get("i-01", await_payment).cancel()
    await aflow.until_idle()
    answer = Reader((await browser.send(form, why="stopped")).text)
    assert "14 runs ordered." in answer.words
    assert "1 run refused it." in answer.words
    await aflow.until_idle()
    by = "select reason_detail->>'by', count(*) from pgflow.runs where status = 'cancelled' and reason = 'stopped' group by 1"
    assert conn.execute(by).fetchall() == [("bob (postgres)", 14)]
    assert run_row(conn, "i-new", "status") == ("waiting",)
    page = await browser.get("/runs/order", verb="retry", key="i-*")
    assert "No run that this search finds takes this order." in page.words
    assert await browser.status("/runs/order", verb="retry") == 400
    assert await browser.status("/runs/order", verb="signal", key="i-*") == 400
    for keys in ("", "[]", "{}", "[1]", "no", "[" * 50_000, str(["x"] * 501).replace("'", '"')):
        assert (await browser.send(form, keys=keys)).status_code == 400


async def test_a_signal_is_sent_with_a_name(aflow, conn):
    aflow.include(*FLOWS)
    run = await settle(aflow, await_payment.options(key="i"), "o")
    browser = Browser(aflow.app, BOB)
    page = await browser.get("/run", key="i")
    link = next(one for one in page.links if "/run/order" in one)  # what it waits for is first
    assert "verb=signal" in link and "name=paid" in link
    answer = await browser.submit(link, {}, payload='{"cents": ')
    assert (answer.status_code, "not JSON" in answer.text) == (400, True)
    answer = await browser.submit(link, {}, payload='{"cents": 5}')
    assert answer.status_code == 303
    await aflow.until_idle()
    assert await run.result(SOON) == "{'cents': 5}"


async def test_a_gate_is_approved_as_it_was_shown(aflow, conn):
    aflow.include(*FLOWS)
    run = await settle(aflow, ask_first.options(key="a"), Order("boots", 20, True))
    browser = Browser(aflow.app, GATES)
    path = await gate_page(browser, "a")
    page = await browser.get(path)
    for word in ("It asks ann, ops.", "sku boots", "qty 20", "rush true", "and expires in 60 m"):
        assert word in page.words, (word, page.words)
    answer = await browser.submit(path, {"verdict": "approve"}, why="fine")
    assert answer.headers["location"] == "/gates?done=approve"
    await aflow.until_idle()
    assert "by=('dora',), edited=False" in await run.result(SOON)
    said = conn.execute("select answered_by, reason, acting_as from pgflow.gate_answer").fetchall()
    assert said == [("dora", "fine", ["ops"])]
    assert await browser.status(path) == 410


@pytest.mark.full
async def test_a_gate_is_approved_with_an_edit_in_fields_or_as_json(aflow):
    aflow.include(*FLOWS)
    browser = Browser(aflow.app, GATES)
    run = await settle(aflow, ask_first.options(key="a"), Order("boots", 20, True))
    path = await gate_page(browser, "a")
    answer = await browser.submit(path, {"verdict": "edit"}, **{"value:/qty": "many"})
    assert answer.status_code == 400
    answer = await browser.submit(
        path, {"verdict": "edit"}, **{"value:/qty": "2", "value:/rush": "false"}
    )
    assert answer.headers["location"] == "/gates?done=approve"
    await aflow.until_idle()
    assert "qty=2, rush=False" in await run.result(SOON)
    run = await settle(aflow, ask_first.options(key="b"), Order("tent", 1, True))
    path = await gate_page(browser, "b")
    form = next(f for f in (await browser.get(path)).forms if "edit" in f.fields)
    answer = await browser.send(form, edit='{"sku": "tent", "qty": "x", "rush": true}')
    assert answer.status_code == 400, "an edit that does not fit leaves the gate open"
    answer = await browser.send(form, edit='{"sku": "tent", "qty": 3, "rush": true}')
    assert answer.status_code == 303
    await aflow.until_idle()
    assert "qty=3" in await run.result(SOON)


@pytest.mark.full
@pytest.mark.parametrize(
    ("verdict", "values", "result"),
    [
        ("reject", {"why": "too many"}, "Rejected(reason='too many', by=('dora',))"),
        ("take_over", {"result": '{"done": 1}'}, "TakenOver(result={'done': 1}, by=('dora',))"),
        ("escalate", {"to": "cto"}, "Escalated(to='cto')"),
    ],
)
async def test_a_gate_is_answered_in_other_ways(aflow, verdict, values, result):
    aflow.include(*FLOWS)
    run = await settle(aflow, ask_first.options(key="a"), Order("boots", 20, True))
    browser = Browser(aflow.app, GATES)
    path = await gate_page(browser, "a")
    if verdict != "take_over":  # the others need a word
        assert (await browser.submit(path, {"verdict": verdict})).status_code == 400
    await browser.submit(path, {"verdict": verdict}, **values)
    await aflow.until_idle()
    assert await run.result(SOON) == result


@pytest.mark.full
async def test_a_gate_is_delegated_by_whom_it_asks_and_nobody_else(aflow, conn):
    aflow.include(*FLOWS)
    await settle(aflow, ask_first.options(key="a"), Order("boots", 20, True))
    dora = Browser(aflow.app, GATES)
    path = await gate_page(dora, "a")
    form = next(f for f in (await dora.get(path)).forms if f.fields.get("verdict") == "delegate")
    forged = await dora.send(form, **{"for": "ann", "to": "dora"})
    assert forged.status_code == 400
    assert (await dora.submit(path, {"verdict": "delegate"}, to="emil")).status_code == 303
    said = "select answered_by, hand_to, reason from pgflow.gate_answer"
    assert conn.execute(said).fetchall() == [("ops", "emil", "dora: delegated")]
    emil = Browser(aflow.app, Principal("emil", ["approve"]))
    assert (await emil.submit(path, {"verdict": "approve"})).status_code == 303
    outsider = Browser(aflow.app, Principal("zoe", ["approve"]))
    await settle(aflow, ask_first.options(key="b"), Order("tent", 1, True))
    path = await gate_page(outsider, "b")
    assert "It asks others." in (await outsider.get(path)).words
    assert (await outsider.submit(path, {"verdict": "approve"})).status_code == 403


@pytest.mark.full
async def test_whoever_answers_a_request_that_was_edited_meanwhile_is_told(aflow, conn):
    aflow.include(*FLOWS)
    await settle(aflow, ask_first.options(key="a"), Order("boots", 20, True))
    browser = Browser(aflow.app, ANN)
    path = await gate_page(browser, "a")
    form = next(f for f in (await browser.get(path)).forms if f.fields.get("verdict") == "approve")
    form.fields["hash"] = "0" * 64
    answer = await browser.send(form)
    assert (answer.status_code, "Something else is asked now" in answer.text) == (409, True)


@pytest.mark.full
async def test_an_unknown_effect_is_settled_with_how_one_knows(aflow, conn):
    aflow.include(*FLOWS)
    run = await settle(aflow, ship.options(key="s"), "lost")
    browser = Browser(aflow.app, BOB)
    page = await browser.get("/effects")
    path = next(link for link in page.links if link.startswith("/debt?"))
    page = await browser.get(path)
    for word in ("Unknown.", "Idempotency key", '"carrier": "lost"', "How is this known?"):
        assert word in page.words, word
    answer = await browser.submit(path, {"verb": "settle"}, verdict="confirmed", value='"b 7"')
    assert answer.status_code == 400
    answer = await browser.submit(
        path, {"verb": "settle"}, verdict="confirmed", value='"b 7"', why="the carrier's page"
    )
    assert answer.headers["location"] == "/effects?done=settle"
    await aflow.until_idle()
    assert await run.result(SOON) == "b 7"
    assert conn.execute("select said_by from pgflow.effects").fetchone() == ("bob (postgres)",)
    assert await browser.status(path) == 404


@pytest.mark.full
async def test_an_obligation_is_discharged_or_waived_with_a_reason(aflow, conn):
    aflow.include(*FLOWS)
    browser = Browser(aflow.app, BOB)
    for key, verb, values in (
        ("c1", "discharge", {"value": '{"invoice": 7}'}),
        ("c2", "waive", {"why": "the customer has left"}),
    ):
        run = await settle(aflow, contract.options(key=key), "ACME")
        page = await browser.get("/run", key=key)
        path = next(link for link in page.links if link.startswith("/debt?"))
        assert "send-invoice" in (await browser.get(path)).words
        answer = await browser.submit(path, {"verb": verb}, **values)
        assert answer.headers["location"] == f"/obligations?done={verb}"
        await aflow.until_idle()
        assert await run.result(SOON) is None
    said = conn.execute(
        "select payload->>'verdict', payload->>'by' from pgflow.timeline "
        "where event = 'obligation_closed' order by at"
    ).fetchall()
    assert said == [("discharged", "bob (postgres)"), ("waived", "bob (postgres)")]


@pytest.mark.full
async def test_a_pool_is_granted_more_and_revoked_by_an_admin(aflow, conn):
    aflow(pools=[Pool("models", usd=10)])
    aflow.include(*FLOWS)
    await settle(aflow, agent.options(pool="models"))
    browser = Browser(aflow.app, ANN)
    path = address("/budget", pool="models")
    assert (await browser.submit(path, {"verb": "grant"}, amount="-1", why="x")).status_code == 400
    assert (await browser.submit(path, {"verb": "grant"}, amount="5")).status_code == 400
    answer = await browser.submit(path, {"verb": "grant"}, amount="5", why="month end")
    assert answer.status_code == 303, answer.text
    assert "of 15" in (await browser.get(path)).words
    assert (await browser.submit(path, {"verb": "revoke"}, why="odd spend")).status_code == 303
    assert "odd spend" in (await browser.get(path)).words
    assert (await browser.submit(path, {"verb": "restore"}, why="explained")).status_code == 303
    low = Browser(aflow.app, BOB)
    assert not [f for f in (await low.get(path)).forms if f.method == "post"]


@pytest.mark.full
async def test_a_queue_is_paused_and_given_rules_while_it_works(aflow, conn):
    aflow.include(*FLOWS)
    await settle(aflow, long.options(key="l"), 1)
    browser, path = Browser(aflow.app, ANN), address("/queue", name="default")
    assert path in (await browser.get("/queues")).links
    given = {"concurrency": "10", "rate": "100/1m", "why": "the mail server begs"}
    answer = await browser.submit(path, {"verb": "set"}, **given)
    assert answer.status_code == 303, answer.text
    shown = form_of(await browser.get(path), {"verb": "set"})
    one(conn, """select pgflow.set_queue('default', '{"rate": "5/1s"}')""")
    assert (await browser.send(shown, concurrency="20")).status_code == 303
    rules = one(conn, "select rules from pgflow.queues where queue = 'default'")
    assert (rules["concurrency"], rules["rate"]) == (20, "5/1s")
    assert (await browser.submit(path, {"verb": "set"}, concurrency="")).status_code == 303
    assert "concurrency" not in one(conn, "select rules from pgflow.queues where queue = 'default'")
    for wrong in ("-1", "1e3", "many", "0"):
        answer = await browser.submit(path, {"verb": "set"}, concurrency=wrong)
        assert answer.status_code == 400, wrong
    assert (await browser.submit(path, {"verb": "pause"}, why="storm")).status_code == 303
    assert one(conn, "select paused_at is not null from pgflow.queues where queue = 'default'")
    assert (await browser.submit(path, {"verb": "resume"})).status_code == 303
    seen_in(await browser.get(path), "the mail server begs", "storm", "paused", "resumed", "ann")
    assert await browser.status("/queue", name="none") == 404
    viewer = await Browser(aflow.app, Principal("vic", ("view",))).get(path)
    assert not [form for form in viewer.forms if form.method == "post"]


@pytest.mark.full
async def test_a_browser_without_scripts_that_names_no_origin_does_each_write(aflow, dsn, conn):
    aflow(pools=[Pool("models", usd=10)])
    aflow.include(*FLOWS)
    await aflow.start(await_payment.options(key="i"), "o")
    await aflow.start(ask_first.options(key="a"), Order("boots", 20, True))
    await aflow.start(ask_first.options(key="b"), Order("boots", 20, True))
    await aflow.start(contract.options(key="c"), "ACME")
    await settle(aflow, long.options(key="l"), 1)
    setting(conn, "s")
    browser = Browser(aflow.app, ANN, is_old=True, auditor_dsn=servers.as_auditor(dsn))
    done = set()

    async def write(path: str, **which: str) -> None:
        form = form_of(await browser.get(path), which)
        form.fields |= {"why": "it must be", "effects": "repeat"}
        form.fields.setdefault("verdict", "approve")
        answer = await browser.send(form)
        assert answer.status_code in (200, 303), answer.text
        done.add(form.action.partition("?")[0])

    debt = next(link for link in (await browser.get("/obligations")).links if "/debt" in link)
    await write(address("/run/order", key="i", verb="signal", name="paid"))
    await write(address("/run/again", key="l", at="1"), verb="rewind")
    await write(address("/runs/order", verb="pause", key="c"))
    await write(await gate_page(browser, "a"), verdict="approve")
    await write(address("/gates/answer", workflow="ask_first", name="approve-order"))
    await write(debt, verb="waive")
    await write(address("/budget", pool="models"), verb="revoke")
    await write(address("/schedule/order", name="s", verb="trigger"))
    await write(address("/queue", name="default"), verb="pause")
    await write(address("/sql", sql="select 1 as one"))
    form = form_of(await browser.get(address("/filters", status="failed")), {"verb": "save"})
    assert (await browser.send(form, name="mine")).status_code == 303
    done.add("/filters")
    one(conn, "select pgflow.declare_relay('mailer', array['orders'])")
    await write(address("/relay/order", name="mailer", verb="pause"))
    assert done == {path for path, _ in WRITES}


@pytest.mark.full
async def test_each_sees_only_the_buttons_of_their_roles(aflow):
    aflow.include(*FLOWS)
    await settle(aflow, ask_first.options(key="a"), Order("boots", 20, True))

    async def seen(principal: Principal) -> tuple[bool, bool]:
        browser = Browser(aflow.app, principal)
        page = await browser.get("/run", key="a")
        gate: Reader = await browser.get(await gate_page(browser, "a"))
        may_order = any(link.startswith("/run/order") for link in page.links)
        return may_order, any(form.method == "post" for form in gate.forms)

    assert await seen(WATCHER) == (False, False)
    assert await seen(BOB) == (True, False)
    assert await seen(GATES) == (False, True)
    assert await seen(ANN) == (True, True)


def test_a_principal_that_means_nothing_is_refused():
    for wrong in (("", ["view"]), (" ", ["view"]), ("ann", ["root"]), ("ann", "view")):
        with pytest.raises(Exception, match="principal"):
            Principal(*wrong)  # type: ignore[arg-type]
