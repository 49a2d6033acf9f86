"""Values: what a run saw the first time is what it sees on every replay."""

from __future__ import annotations

from typing import Any

import hypothesis
import psycopg
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pgflow import App, testing
from pgflow._db.calls.claim import load_units
from pgflow._db.query import run as ask
from pgflow._model.codecs import Codec, codec_for
from pgflow.errors import NotStorable
from tests.campaigns import jobs
from tests.campaigns.ground import Ground, audit, drain, not_completed, start, wait_until
from tests.kits import sqlkit
from tests.kits.evidence import Evidence
from tests.kits.processes import one
from tests.model.test_values import ANNOTATED, json_values, plain_values

KINDS: list[tuple[Any, st.SearchStrategy[Any]]] = [
    *ANNOTATED,
    (Any, json_values),
    (Any, plain_values),
]
ONE = st.one_of([st.tuples(st.just(n), values) for n, (_, values) in enumerate(KINDS)])
BATCH = 40


def round_trips(ground: Ground) -> list[Evidence]:
    """Generated values are refused when they are written, or committed as the outcomes of steps and
    read back as a replay reads them.
    """
    wanted = ground.scaled(400, 100_000)
    codecs = [codec_for(annotation) for annotation, _ in KINDS]
    seen = set()
    done, refused, wrong = 0, 0, []
    with ground.database() as (_, conn):

        @hypothesis.seed(ground.rng.getrandbits(32))
        @settings(
            max_examples=-(-wanted // BATCH),
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(st.lists(ONE, min_size=BATCH, max_size=BATCH))
        def there_and_back(values: list[tuple[int, Any]]) -> None:
            nonlocal done, refused
            stored = []
            for kind, value in values:
                try:
                    stored.append((codecs[kind], value, codecs[kind].encode(value, "a value")))
                except NotStorable:
                    refused += 1
                else:
                    seen.add(kind)
            done += len(stored)
            wrong.extend(_through_the_journal(conn, stored))

        there_and_back()
        wrong += audit(conn)
    ground.happened("kinds of values (G8)", len(seen), len(KINDS))
    return [
        Evidence(
            "G8",
            "values of every kind through the journal: first run against replay",
            done,
            wrong=tuple(wrong[:5]),
            figure=f"{len(wrong)} mismatches, {len(KINDS)} kinds; {refused:,} more refused",
        )
    ]


def _through_the_journal(
    conn: psycopg.Connection[Any], values: list[tuple[Codec[Any], Any, str]]
) -> list[str]:
    """Commits values, which come with their texts, as a run's units, and loads them again: where a
    run or its replay would see something else than was written.
    """
    texts = [text for _, _, text in values]
    claim = sqlkit.begin(conn, "values")
    sqlkit.commit(
        conn,
        sqlkit.flush(
            claim, *(sqlkit.unit(call=n, payload=text) for n, text in enumerate(texts, 1))
        ),
    )
    stored = []
    while page := ask(conn, load_units(claim.run_id, len(stored))):
        stored += page
    sqlkit.finish(conn, claim)
    wrong = [f"{len(stored)} units of {len(texts)}"] if len(stored) != len(texts) else []
    for (codec, value, text), unit in zip(values, stored, strict=False):
        first, replayed = codec.decode(text, "a value"), codec.decode(unit.payload or "", "a value")
        again = codec.decode(codec.encode(replayed, "a value"), "a value")
        if repr(first) != repr(replayed) or not value == first == again:
            wrong.append(
                f"{value!r:.80} written, {first!r:.80} at first, {replayed!r:.80} on replay, "
                f"{again!r:.80} the next time"
            )
    return wrong


WAITING = "select count(*) from pgflow.runs where status = 'waiting'"
AT_WORK = "select count(*) from pgflow.runs where status in ('queued', 'running')"


def replays(ground: Ground) -> list[Evidence]:
    """Values that could be taken for none are handed out once, and seen again by replays after
    kills and waits.
    """
    count = ground.scaled(5, 300)
    with ground.database() as (dsn, conn):
        keys = [start(conn, "nothings", f"nothing-{n}", key=f"nothing-{n}") for n in range(count)]
        with ground.workers(dsn, 1, concurrency=50) as fleet:
            for value in ("null", "false"):
                wait_until(lambda: one(conn, WAITING) == count, "every run waits")
                # Nothing of the runs is left in memory: what follows is a replay, by another
                # process.
                fleet.replace(fleet.members[0])
                for key in keys:
                    conn.execute("select pgflow.send_signal(%s, 'go', %s::json)", (key, value))
                wait_until(
                    lambda: one(conn, "select count(*) from pgflow.signal") == 0,
                    "the signals are taken",
                )
                wait_until(lambda: one(conn, AT_WORK) == 0, "every run waits again, or is over")
            drain(conn)
        expected = repr(list(jobs.NOTHINGS))
        first = [note for (note,) in conn.execute("select note from app.booked")]
        outputs = [output for (output,) in conn.execute("select output from pgflow.runs")]
        wrong = [f"first run: {note}" for note in first if note != expected]
        wrong += [f"replay: {output}" for output in outputs if output != [expected, "False"]]
        units = one(conn, "select count(*) from pgflow.unit where kind = 'c' and name = 'hand_out'")
        lost, doubled = (
            max(0, count * len(jobs.NOTHINGS) - units),
            max(0, units - count * len(jobs.NOTHINGS)),
        )
        wrong += [*not_completed(conn, keys), *audit(conn)]
        with App(dsn, include=jobs.WORKFLOWS) as app:
            testing.replay_all(app)
    ground.happened("replays by another process (G9)", 2 * count, 2 * count)
    return [
        Evidence(
            "G9",
            "None, false, 0, '' and empty values, replayed after kills",
            count * len(jobs.NOTHINGS),
            lost,
            doubled,
            tuple(wrong[:5]),
        )
    ]
