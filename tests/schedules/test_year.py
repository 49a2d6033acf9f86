"""A year of schedules in the database: no slot is missed or doubled, though looks die, come late and
come twice, and processes are killed.
"""

from __future__ import annotations

import random
import signal
from collections import Counter
from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from clikit import process
from schedulekit import look, setting
from servers import wait_until
from sqlkit import connect, one, rows, set_clock
from test_slots import END, YEAR, ZONES, oracle

EXPRESSIONS = [
    "0 */6 * * *", "5 */8 * * *", "30 2 * * *", "30 1 * * *", "0 0 * * *", "0 2,3 * * *",
    "15 3 * * 1-5", "0 9 1 * *", "45 23 L * *", "0 12 29 2 *", "10 4 * * 0", "0 6,18 15 1,4,7,10 *",
]  # fmt: skip


@pytest.mark.full
def test_no_slot_of_a_year_is_missed_or_doubled(conn, dsn):
    """By the oracle, which knows nothing of this library. Looks are up to two days late."""
    chance = random.Random(24)
    conn.execute("set synchronous_commit = off")
    set_clock(conn, YEAR)
    wanted = {}
    for zone in ZONES[::4]:
        for expression in EXPRESSIONS[::2]:
            name = f"{expression} {zone}"
            wanted[name] = oracle(expression, zone)
            setting(
                conn,
                name,
                spec={"cron": [expression], "tz": zone},
                overlap="allow",
                catch_up="all",
                max_catch_up=1000,
            )
    now = YEAR
    with connect(dsn) as dying:
        while now < END:
            now = min(now + timedelta(seconds=chance.expovariate(1 / 100_000)), END)
            set_clock(conn, now)
            if chance.random() < 0.2:
                with dying.transaction(force_rollback=True):
                    look(dying)
            while True:
                kept = look(conn)
                if not kept.fired and not any(found.has_none for found in kept.refills):
                    break
    fired = Counter(key for key in rows(conn, "select key from pgflow.run"))
    expected = Counter(
        f"{name}/{slot:%Y-%m-%dT%H:%M:%SZ}" for name, slots in wanted.items() for slot in slots
    )
    assert len(expected) > 3_000
    assert fired == expected
    assert one(conn, "select sum(missed) + sum(skipped) from pgflow.schedules") == 0


TICKING = """
import pgflow

def make(n):
    @pgflow.schedule("* * * * * *", name=f"s{n}", overlap="allow", catch_up="all", max_catch_up=1000)
    @pgflow.workflow(name=f"ticking{n}")
    async def ticking(slot: pgflow.Slot) -> None: ...
    return ticking

app = pgflow.AsyncApp(include=[make(n) for n in range(10)])
"""


def _count(conn: psycopg.Connection) -> int:
    return one(conn, "select count(*) from pgflow.run")


@pytest.mark.full
def test_four_workers_that_are_killed_fire_each_second_once(conn, dsn, tmp_path):
    flows = tmp_path / "ticking.py"
    flows.write_text(TICKING)
    chance = random.Random(24)

    def begin():
        return process(dsn, "workers", str(flows), "--dead-after", "1s", "--log-level", "error")

    fleet = [begin() for _ in range(4)]
    try:
        wait_until(lambda: _count(conn) > 50, "they fire")
        for _ in range(3):
            seen = _count(conn)
            keeper = one(
                conn,
                "select pid from pgflow.worker w join pgflow.schedule_state s on s.keeper = w.worker_id",
            )
            dead = next(
                (n for n, worker in enumerate(fleet) if worker.pid == keeper), chance.randrange(4)
            )
            fleet[dead].send_signal(signal.SIGKILL)
            fleet[dead].communicate()
            fleet[dead] = begin()
            wait_until(lambda: _count(conn) > seen + 20, "others fire")  # noqa: B023
    finally:
        for worker in fleet:
            worker.send_signal(signal.SIGTERM)
        for worker in fleet:
            worker.communicate()
    slots: dict[str, list[datetime]] = {}
    for key in rows(conn, "select key from pgflow.run"):
        name, _, slot = key.partition("/")
        slots.setdefault(name, []).append(datetime.fromisoformat(slot).astimezone(UTC))
    assert len(slots) == 10
    for name, fired in slots.items():
        last = one(conn, "select last_slot_at from pgflow.schedules where name = %s", name)
        seconds = int((last - min(fired)).total_seconds()) + 1
        assert sorted(fired) == [min(fired) + timedelta(seconds=n) for n in range(seconds)]
    assert one(conn, "select sum(missed) from pgflow.schedules") == 0


@pytest.mark.full
def test_a_thousand_schedules_cost_an_idle_fleet_less_than_a_statement_a_second(conn):
    """An hour of ten workers on a clock of our own, each of which comes when it was told to."""
    set_clock(conn, YEAR)
    conn.execute("set synchronous_commit = off")
    conn.execute(
        "select pgflow.set_schedule('s' || n, 'work', jsonb_build_object('cron', "
        "jsonb_build_array(format('%s %s * * *', n % 60, n % 24)), 'tz', 'Europe/London'), overlap => 'allow') "
        "from generate_series(1, 1000) n"
    )
    fleet = rows(
        conn,
        "select pgflow.register_worker('host', n, '{default}', 10, 'test') from generate_series(1, 10) n",
    )
    while any(found.has_none for found in look(conn).refills):
        pass
    hour = 3600.0
    due = dict.fromkeys(fleet, 0.0)
    statements = fired = 0
    while (worker := min(due, key=due.__getitem__)) and (at := due[worker]) < hour:
        set_clock(conn, YEAR + timedelta(seconds=at))
        kept = look(conn, worker, at_once=False)
        statements += 1 + bool(kept.refills)
        fired += kept.fired
        due[worker] = at + max(0.005 if kept.refills else kept.wait_seconds, 0.005)
    assert fired > 30
    assert statements / hour < 1
