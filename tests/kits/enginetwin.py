"""A store in memory beside a real database: each is told the same, and must come to the same.

`enginestore.Store` stands in for ``sql/runs/commit.sql`` and ``sql/runs/answer.sql`` in the tests
of the engine, thousands of times a second. A :class:`Twin` makes every call of it on a database
too, first, and takes numbers and tokens from there. Then it compares: the answer of the call, and
after it the place, the journal and the outcome of every run, and the mail of every chain.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

import psycopg
import sqlkit
from enginestore import PURSE, Store, StoredRun

from pgflow._db.calls.commit import read_answer
from pgflow._flow.workflow import Workflow
from pgflow._model.claims import Claim, Offer
from pgflow._model.kinds import Kind
from pgflow._model.protocol import Answer

CLOCK = """
create table public.twin_clock (at timestamptz not null);
insert into public.twin_clock values ('2030-01-01');
grant select on public.twin_clock to public;
grant usage on schema public to public;
create or replace function pgflow.now_() returns timestamptz language sql volatile set search_path = pg_catalog, pg_temp
as $$ select at from public.twin_clock $$;
"""
PLACES = """
select r.run_id, coalesce(p.place, 'ended'), o.status, o.output::text from pgflow.run r
left join (
  select run_id, 'ready' as place from pgflow.ready union all select run_id, 'leased' from pgflow.lease
  union all select run_id, 'parked' from pgflow.parked union all select run_id, 'held' from pgflow.held
) p using (run_id)
left join pgflow.outcome o using (run_id)
"""
MAIL = "select signal_id, chain_id, kind, name, run_id, call, payload::text from pgflow.signal order by signal_id"
UNITS = """
select run_id, seq, call, kind, name, payload::text, pgflow.micros_(due_at) from pgflow.unit order by run_id, seq
"""


class Twin(Store):
    """See the module."""

    def __init__(self, conn: psycopg.Connection[Any], *workflows: Workflow[..., Any]) -> None:
        super().__init__(*workflows)
        self._conn = conn
        self.person = f"a person ({sqlkit.one(conn, 'select session_user')})"
        conn.execute(CLOCK)
        conn.execute(f"""select pgflow.set_pool('purse', '{{"usd": {PURSE}}}', soft => null)""")
        self._worker = sqlkit.register(conn)
        self._new: list[tuple[int, str, str]] = []

    def _one(self, query: str, *params: Any) -> Any:
        at = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self.now_us)
        self._conn.execute("update public.twin_clock set at = %s", (at,))
        return sqlkit.one(self._conn, query, *params)

    def _find_new_runs(self) -> None:
        """Numbers, keys and roots of runs that a call has made: the store gives them to its own."""
        query = "select run_id, key, root::text from pgflow.run where run_id > %s order by run_id"
        self._new = self._conn.execute(query, (self._ids,)).fetchall()

    def _insert(
        self,
        workflow: Workflow[..., Any],
        text: str,
        key: str | None,
        parent: tuple[int, int] | None,
        policy: str,
    ) -> StoredRun:
        run_id, made_key, root = self._new.pop(0)
        self._ids = run_id - 1
        run = super()._insert(workflow, text, made_key, parent, policy)
        run.root = root
        return run

    # ------------------------------------------------------------ what clients do

    def start(self, workflow: Workflow[..., Any], *args: Any, **kwargs: Any) -> StoredRun:
        text = workflow.encode_input(args, kwargs)
        self._one(
            "select run_id from pgflow.start_run(%s, %s::json, %s)",
            workflow.name,
            text,
            workflow.start_options.key,
        )
        self._find_new_runs()
        run = super().start(workflow, *args, **kwargs)
        self.compare()
        return run

    def send(self, run: StoredRun, name: str, payload: Any = None) -> None:
        self._one("select pgflow.post_signal(%s, %s, %s::json)", run.key, name, json.dumps(payload))
        super().send(run, name, payload)
        self.compare()

    def cancel(self, run: StoredRun, why: str = "cancelled") -> None:
        self._one("select pgflow.cancel_run(%s, %s, sent_by => 'a person')", run.key, why)
        super().cancel(run, why)
        self.compare()

    def pause(self, run: StoredRun, why: str = "paused") -> None:
        self._one("select pgflow.pause_run(%s, %s, sent_by => 'a person')", run.key, why)
        super().pause(run, why)
        self.compare()

    def resume(self, run: StoredRun) -> None:
        self._one("select pgflow.resume_run(%s, 'resumed', sent_by => 'a person')", run.key)
        super().resume(run)
        self.compare()

    def discharge(self, run: StoredRun, key: str) -> None:
        self._one("select pgflow.discharge(%s, sent_by => 'a person')", key)
        super().discharge(run, key)
        self.compare()

    # ------------------------------------------------------------ places

    def claim(self, run: StoredRun) -> Claim:
        self._conn.execute(
            "update pgflow.ready set priority = case when run_id = %s then -1 else 0 end",
            (run.run_id,),
        )
        (row,) = sqlkit.rows(
            self._conn,
            "select run_id, token, last_seq, has_mail, extra from pgflow.claim_runs(%s, "
            "array(select lane_id from pgflow.lane), 1, %s)",
            self._worker,
            sqlkit.tokens(1),
        )
        self._conn.execute("update pgflow.lease set priority = 0")
        run_id, token, last_seq, has_mail, extra = row
        self._tokens = token - 1
        claim = super().claim(run)
        message = (extra or {}).get("offer") or (extra or {}).get("result")
        offer = message and Offer(*message)
        assert (run_id, last_seq, has_mail, _apart_from_content(offer)) == (
            run.run_id,
            claim.last_seq,
            claim.has_mail,
            _apart_from_content(claim.offer),
        )
        self.compare()
        return claim

    def release_all(self) -> None:
        held = [run for run in self.runs.values() if run.place == "leased"]
        self._one(
            "select pgflow.release_runs(%s, %s)",
            [run.run_id for run in held],
            [run.token for run in held],
        )
        super().release_all()
        self.compare()

    def wake(self, chain_id: int) -> StoredRun | None:
        self._one("select pgflow.wake(%s::bigint[])", [chain_id])
        told = super().wake(chain_id)
        self.compare()
        return told

    def wake_due(self) -> None:
        self._one("select pgflow.wake_due_(1000, pgflow.now_())")
        super().wake_due()
        self.compare()

    # ------------------------------------------------------------ commit

    def commit(self, document: str) -> tuple[str | None, Answer | None]:
        self.now_us += 1
        batch = json.loads(document)
        raw = (
            self._one(
                "select pgflow.commit_units(%s)", json.dumps(batch | {"worker": self._worker})
            )
            or {}
        )
        self.now_us -= 1
        self._find_new_runs()
        verdict, answer = super().commit(document)
        found = [bad for _, bad in raw.get("bad") or ()]
        assert found == [v for v in (verdict,) if v is not None], raw
        theirs = next(iter(map(read_answer, raw.get("answers") or ())), None)
        assert _comparable(theirs) == _comparable(answer), (theirs, answer)
        self.compare()
        told = {chain: Offer(*message) for chain, message in raw.get("told") or ()}
        for chain, offer in told.items():
            assert _apart_from_content(offer) == _apart_from_content(self.told().get(chain))
        assert told.keys() == self.told().keys()
        return verdict, answer

    def fence(self, run: StoredRun, token: int, rows: str) -> int | None:
        call = json.loads(f"[{rows}]")[-1][2]
        self.now_us += 1
        with self._conn.transaction():
            self._one("select pgflow.begin_step(%s, %s, %s)", run.run_id, token, call)
            at_us = self._one(
                "select pgflow.fence_step(%s, %s, %s, %s)", run.run_id, token, call, f"[{rows}]"
            )
        self.now_us -= 1
        ours = super().fence(run, token, rows)
        assert at_us == ours
        self.compare()
        return ours

    # ------------------------------------------------------------ comparing

    def compare(self) -> None:
        """Everything that both have written is the same; mail gets the database's numbers."""
        theirs = {row[0]: row[1:] for row in self._conn.execute(PLACES).fetchall()}
        assert {i: (r.place, r.status, _json(r.output)) for i, r in self.runs.items()} == {
            i: (place, status, _json(output)) for i, (place, status, output) in theirs.items()
        }
        journals = {
            run_id: [_unit(*row[1:]) for row in rows]
            for run_id, rows in groupby(self._conn.execute(UNITS).fetchall(), lambda r: r[0])
        }
        for run_id, run in self.runs.items():
            ours = [_unit(u.seq, u.call, u.kind, u.name, u.payload, u.due_us) for u in run.units]
            assert journals.get(run_id, []) == ours, (
                f"run {run_id}: the database has {journals.get(run_id)}, the store {ours}"
            )
        self._compare_mail()

    def _compare_mail(self) -> None:
        theirs = self._conn.execute(MAIL).fetchall()
        numbers: dict[Any, list[int]] = {}
        for signal_id, chain_id, kind, name, run_id, call, payload in theirs:
            numbers.setdefault(
                (chain_id, kind, name, run_id, call, _mail_payload(kind, payload)), []
            ).append(signal_id)
        mail = []
        for m in self.mail:
            known = numbers.get(
                (m.chain_id, m.kind, m.name, m.run_id, m.call, _mail_payload(m.kind, m.payload))
            )
            assert known, f"only the store has {m}, the database has {theirs}"
            mail.append(m._replace(mail_id=known.pop(0)))
        assert not any(numbers.values()), f"only the database has {numbers}"
        self.mail = sorted(mail)


def _apart_from_content(offer: Offer | None) -> Offer | None:
    return offer and offer._replace(payload="", sent_us=0)


def _json(text: str | None) -> str | None:
    return None if text is None else json.dumps(json.loads(text), sort_keys=True)


def _mail_payload(kind: str, text: str | None) -> str | None:
    """Of people's requests the store keeps the reason only."""
    if kind == "s" or text is None:
        return _json(text)
    said = json.loads(text)
    return str(said.get("why", said.get("status")))


def _unit(
    seq: int, call: int, kind: str, name: str | None, payload: str | None, due_us: int | None
) -> tuple[Any, ...]:
    """A unit as far as both write it: what an operator said stands in the database alone."""
    return seq, call, kind, name, None if kind == Kind.OPERATOR else _json(payload), due_us


def _comparable(answer: Answer | None) -> dict[str, Any] | None:
    if answer is None:
        return None
    units = [[*unit[:4], _json(unit[4])] for unit in answer["units"]]
    return {
        "run": answer["run"],
        "units": units,
        "place": answer["place"],
        "pause": answer["pause"],
    }
