"""The database's part in memory: what ``sql/runs/commit.sql`` and ``sql/runs/answer.sql`` do,
without a database.

`tests/engine/test_engine_store.py` holds it to the database, history by history.

A :class:`Store` keeps runs, units, mail and a clock. It takes the very documents that a worker
sends and gives the answers that the stored functions give. Time is a number that moves when a test
says so, and what the world outside will do is a list (`coming`), so that a copy of a store has the
same future.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, NamedTuple

from pgflow._db.calls.commit import read_answer
from pgflow._db.calls.replay import RecordedRun
from pgflow._flow.workflow import Workflow
from pgflow._model.claims import Claim, Offer
from pgflow._model.exceptions import ErrorClasses, rebuild_error
from pgflow._model.kinds import Kind
from pgflow._model.protocol import Answer
from pgflow._model.units import Unit

SECOND = 1_000_000

PURSE = Decimal(2)
"""Dollars in the one pool that a store has, which is named purse."""


class Mail(NamedTuple):
    """A row of a mailbox: s = signal, c = result of a child, x = cancel, p = pause, r = resume, e =
    word of an obligation, l = what became of the wait for a lock.
    """

    mail_id: int
    chain_id: int
    kind: str
    name: str
    sent_us: int
    payload: str | None
    run_id: int | None = None
    call: int | None = None
    sent_by: str | None = None


class Held(NamedTuple):
    """A lock and its holder; call 0 = from the generation before, and not asked for yet."""

    fence: int
    key: str
    run_id: int
    call: int
    is_shared: bool
    expires_us: int | None


class Queued(NamedTuple):
    """A wait for a lock."""

    key: str
    run_id: int
    call: int
    is_shared: bool
    ttl_seconds: float | None
    within: list[int]


@dataclass
class StoredRun:
    """A run with its journal and its place: ready, leased, parked, held or ended."""

    run_id: int
    chain_id: int
    generation: int
    workflow: Workflow[..., Any]
    key: str
    root: str
    input: str
    created_us: int
    parent: tuple[int, int] | None = None
    close_policy: str = "c"
    place: str = "ready"
    token: int = 0
    attempt: int = 0
    units: list[Unit] = field(default_factory=list)
    waits: dict[str, Any] = field(default_factory=dict)
    due_us: list[int] = field(default_factory=list)
    held: list[Any] | None = None
    status: str | None = None
    reason: str | None = None
    output: str | None = None
    error: str | None = None

    @property
    def last_seq(self) -> int:
        """The newest seq."""
        return len(self.units)

    def kinds(self) -> str:
        """Kinds of its units in their order, one letter each."""
        return "".join(unit.kind for unit in self.units)

    def shape(self) -> list[tuple[int, str, str | None]]:
        """Call, kind and name of each unit."""
        return [(unit.call, unit.kind, unit.name) for unit in self.units]

    def licensed(self) -> dict[int, list[Any]]:
        """Return the licences in ``starts`` of its units, by call."""
        return {start[0]: start for unit in self.units for start in unit.starts or ()}

    def owed(self) -> dict[str, Unit]:
        """Return the obligations that its journal leaves open, by their keys: how each began."""
        opened: dict[str, Unit] = {}
        for unit in self.units:
            if unit.kind == Kind.OBLIGATION_OPENED:
                opened[json.loads(unit.payload or "{}")["key"]] = unit
            elif unit.kind == Kind.OBLIGATION_CLOSED:
                said = json.loads(unit.payload or "{}")
                if said["verdict"] != "transferred":
                    opened.pop(said["key"], None)
        return opened

    def result(self) -> Any:
        """Return the workflow's result, or raise its error."""
        if self.status == "completed":
            assert self.output is not None
            return self.workflow.result_codec.decode(self.output, "the result")
        if self.status == "failed":
            assert self.error is not None
            raise rebuild_error(json.loads(self.error), ErrorClasses(self.workflow.raises))
        raise AssertionError(
            f"run {self.run_id} is {self.place}, {self.status}, {self.held}: {self.units}"
        )

    def recorded(self) -> RecordedRun:
        """The run as it is recorded."""
        status = self.status or ("stuck" if self.place == "held" else "waiting")
        return RecordedRun(self.claim(token=0), status, self.output)

    def claim(self, token: int, now_us: int = 0, *, has_mail: bool = False) -> Claim:
        """The run as a worker claims it."""
        return Claim(
            run_id=self.run_id,
            token=token,
            chain_id=self.chain_id,
            lane_id=1,
            generation=self.generation,
            attempt=self.attempt,
            suspect=0,
            last_seq=self.last_seq,
            key=self.key,
            root=self.root,
            input=self.input,
            units=list(self.units),
            has_mail=has_mail,
            created_us=self.created_us,
            now_us=max(now_us, self.created_us),
            workflow=self.workflow.name,
            parent_run_id=self.parent[0] if self.parent else None,
        )


class Store:
    """See the module."""

    def __init__(
        self, *workflows: Workflow[..., Any], now_us: int = 1_700_000_000 * SECOND
    ) -> None:
        self.workflows = {workflow.name: workflow for workflow in workflows}
        self.now_us = now_us
        self.person = "a person"
        """The sender of all that people send."""
        self.runs: dict[int, StoredRun] = {}
        self.keys: dict[str, int] = {}
        self.mail: list[Mail] = []
        self._told_parent: StoredRun | None = None
        self.nudged: list[int] = []
        self.coming: list[Callable[[Store], None]] = []
        self.locks: list[Held] = []
        self.queue: list[Queued] = []
        self._fences = 0
        self._ids = 0
        self._mail_ids = 0
        self._tokens = 0
        self._writers: dict[tuple[int, int], int] = {}
        self.replies: dict[str, str] = {}
        """Answers to updates, by their ids."""
        self._purse = PURSE
        """Dollars that the pool can still admit."""
        self.reserved: dict[tuple[int, int], Decimal] = {}
        """Dollars reserved, by run and call."""

    def fork(self) -> Store:
        """A copy that goes its own way."""
        other = Store(now_us=self.now_us)
        vars(other).update(vars(self))
        other.keys, other.mail, other.nudged, other.coming = (
            dict(self.keys),
            list(self.mail),
            list(self.nudged),
            list(self.coming),
        )
        other._writers = dict(self._writers)
        other._purse, other.reserved = self._purse, dict(self.reserved)
        other.locks, other.queue = list(self.locks), list(self.queue)
        other.replies = dict(self.replies)
        other.runs = {
            run_id: replace(
                run, units=list(run.units), waits=dict(run.waits), due_us=list(run.due_us)
            )
            for run_id, run in self.runs.items()
        }
        return other

    # ------------------------------------------------------------ what clients do

    def start(self, workflow: Workflow[..., Any], *args: Any, **kwargs: Any) -> StoredRun:
        """Starts a run."""
        self.workflows.setdefault(workflow.name, workflow)
        options = workflow.start_options
        return self._insert(workflow, workflow.encode_input(args, kwargs), options.key, None, "c")

    def _insert(
        self,
        workflow: Workflow[..., Any],
        text: str,
        key: str | None,
        parent: tuple[int, int] | None,
        policy: str,
    ) -> StoredRun:
        self._ids += 1
        run = StoredRun(
            run_id=self._ids,
            chain_id=self._ids,
            generation=1,
            workflow=workflow,
            key=key or f"key-{self._ids}",
            root=f"root-{self._ids}",
            input=text,
            created_us=self.now_us,
            parent=parent,
            close_policy=policy,
        )
        self.runs[run.run_id] = run
        self.keys[run.key] = run.run_id
        return run

    def send(self, run: StoredRun, name: str, payload: Any = None) -> None:
        """Sends a signal."""
        self._post(run.chain_id, "s", name, json.dumps(payload))

    def ask(self, run: StoredRun, update_id: str, name: str, **args: Any) -> None:
        """Sends an update, once for each id."""
        if update_id in self.replies:
            return
        self.replies[update_id] = "waiting"
        said = json.dumps({"id": update_id, "args": args})
        self._post(run.chain_id, "u", name, said)

    def cancel(self, run: StoredRun, why: str = "cancelled") -> None:
        """Asks a run to end."""
        self._post(run.chain_id, "x", "cancel", json.dumps({"why": why}), sent_by=self.person)

    def pause(self, run: StoredRun, why: str = "paused") -> None:
        """Asks a run to stand still."""
        self._post(run.chain_id, "p", "pause", json.dumps({"why": why}), sent_by=self.person)

    def resume(self, run: StoredRun) -> None:
        """Lets a run go on."""
        self._post(run.chain_id, "r", "resume", json.dumps({"why": "resumed"}), sent_by=self.person)

    def discharge(self, run: StoredRun, key: str) -> None:
        """Says that an obligation of an open run was done."""
        opened = run.owed()[key]
        said = json.dumps({"obligation": key, "verdict": "discharged"})
        self._post(run.chain_id, "e", opened.name or "", said, run.run_id, opened.call, self.person)

    def discharge_named(self, name: str, looks: int = 50) -> None:
        """Says that an obligation of the first run was done, now or once it has opened it: changed
        code may never do so.
        """
        run = self.runs[1]
        keys = [key for key, unit in run.owed().items() if unit.name == name]
        if keys:
            self.discharge(run, keys[0])
        elif run.place != "ended" and looks:
            self.coming.append(lambda store: store.discharge_named(name, looks - 1))

    def newest(self, run: StoredRun) -> StoredRun:
        """The newest generation of its chain."""
        return max(
            (r for r in self.runs.values() if r.chain_id == run.chain_id),
            key=lambda r: r.generation,
        )

    def _post(
        self,
        chain_id: int,
        kind: str,
        name: str,
        payload: str | None,
        run_id: int | None = None,
        call: int | None = None,
        sent_by: str | None = None,
        sent_us: int | None = None,
    ) -> None:
        self._mail_ids += 1
        at_us = self.now_us if sent_us is None else sent_us
        self.mail.append(
            Mail(self._mail_ids, chain_id, kind, name, at_us, payload, run_id, call, sent_by)
        )
        self.nudged.append(chain_id)

    def _note_operator(self, run: StoredRun, name: str, why: str | None = None) -> None:
        run.units.append(
            Unit(
                run.last_seq + 1,
                0,
                Kind.OPERATOR,
                name,
                json.dumps({"why": why}),
                None,
                self.now_us,
                None,
            )
        )

    # ------------------------------------------------------------ places

    def claim(self, run: StoredRun) -> Claim:
        """ready -> leased."""
        assert run.place == "ready"
        self._tokens += 1
        run.place, run.token, run.attempt = "leased", self._tokens, run.attempt + 1
        mailbox = [m for m in self.mail if m.chain_id == run.chain_id]
        claim = run.claim(run.token, self.now_us, has_mail=any(m.kind in "xpe" for m in mailbox))
        claim.offer = self.offer_to(run)
        return claim

    def offer_to(self, run: StoredRun) -> Offer | None:
        """The signal, or the result of a child, that is all there is in the mailbox."""
        mailbox = [m for m in self.mail if m.chain_id == run.chain_id]
        if [m.kind for m in mailbox] == ["s"]:
            (only,) = mailbox
            return Offer(only.mail_id, only.name, only.payload or "null", only.sent_us)
        if [(m.kind, m.run_id) for m in mailbox] == [("c", run.run_id)]:
            (only,) = mailbox
            child = self.runs[json.loads(only.payload or "null")["run_id"]]
            return Offer(
                only.mail_id,
                only.name,
                only.payload or "null",
                only.sent_us,
                only.call,
                child.workflow.name,
            )
        return None

    def release_all(self) -> None:
        """Release the runs of all workers, which are dead."""
        for run in self.runs.values():
            if run.place == "leased":
                run.place = "ready"

    def wake(self, chain_id: int) -> StoredRun | None:
        """Looks at a nudged chain; answers the run that its worker must be told of."""
        self.nudged.remove(chain_id)
        run = self.newest(self.runs[chain_id])
        self._apply_controls(run)
        if run.place == "parked" and self._has_reason(run):
            self._unpark(run)
        elif run.place == "ended":
            self.mail = [m for m in self.mail if m.chain_id != chain_id]
        return run if run.place == "leased" else None

    def _apply_controls(self, run: StoredRun) -> None:
        """Apply people's requests to a run that no worker holds: the last word of pause and resume
        counts, a cancel above both.
        """
        asked = [m for m in self.mail if m.chain_id == run.chain_id and m.kind in "pr"]
        is_cancelled = any(m.chain_id == run.chain_id and m.kind == "x" for m in self.mail)
        if run.place in ("leased", "ended") or not (asked or is_cancelled):
            return
        self.mail = [m for m in self.mail if m not in asked]
        wants_pause = bool(asked) and asked[-1].kind == "p" and not is_cancelled
        if (run.place == "held") == wants_pause:
            return
        for m in asked:
            self._note_operator(run, m.name)
        self._unpark(run)
        if wants_pause:
            run.place, run.held = "held", ["paused", "paused", None, None, self.person]

    def _has_reason(self, run: StoredRun) -> bool:
        names = {name for _, name in run.waits.get("signals", ())}
        mine = [m for m in self.mail if m.chain_id == run.chain_id]
        if any(m.kind == "x" or m.kind == "e" and m.run_id == run.run_id for m in mine):
            return True
        return any(
            m.kind == "s"
            and m.name in names
            or m.kind == "c"
            and m.run_id == run.run_id
            and run.waits.get("child_calls")
            or m.kind == "g"
            and m.run_id == run.run_id
            and any(call == m.call for call, _ in run.waits.get("gates", ()))
            or m.kind == "l"
            and m.run_id == run.run_id
            or m.kind == "u"
            and run.waits.get("updates")
            for m in mine
        )

    def _unpark(self, run: StoredRun) -> None:
        run.place, run.waits, run.due_us, run.attempt, run.held = "ready", {}, [], 0, None

    def wake_due(self) -> None:
        """parked -> ready for runs with a timer that is due."""
        for run in self.runs.values():
            if run.place == "parked" and any(due <= self.now_us for due in run.due_us):
                self._unpark(run)

    def next_due_us(self) -> int | None:
        """Return the time of the next timer of a parked run, or None."""
        return min(
            (due for run in self.runs.values() if run.place == "parked" for due in run.due_us),
            default=None,
        )

    # ------------------------------------------------------------ commit

    def told(self) -> dict[int, Offer]:
        """By chain, what the last commit has offered to a parent that a worker holds."""
        parent = self._told_parent
        if parent is None or parent.place != "leased" or parent.run_id != parent.chain_id:
            return {}
        offer = self.offer_to(parent)
        return {} if offer is None else {parent.chain_id: offer}

    def commit(self, document: str) -> tuple[str | None, Answer | None]:
        """``commit_units`` for one run: the verdict, if it is not well, and the answer to the
        question, if there was one.
        """
        self._told_parent = None
        batch = json.loads(document)
        ((run_id, token, expected),) = batch["runs"]
        run = self.runs[run_id]
        if self._writers.get((run_id, expected + 1)) == token:
            return "already", None
        if run.place != "leased" or run.token != token or run.last_seq != expected:
            return "lost", None
        self.now_us += 1
        self.append(run, batch["units"])
        for of_run, chain_id, name, mail_id, *is_result in batch.get("taken", ()):
            kind, unit_kind = (
                ("c", Kind.CHILD_FINISHED) if is_result else ("s", Kind.SIGNAL_RECEIVED)
            )
            (taken,) = [
                m
                for m in self.mail
                if (m.mail_id, m.chain_id, m.name, m.kind) == (mail_id, chain_id, name, kind)
            ]
            assert (of_run, chain_id) == (run_id, run.chain_id)
            assert any(
                (row[3], row[5]) == (unit_kind, taken.payload)
                and (row[2] == taken.call if is_result else row[4] == name)
                for row in batch["units"]
            )
            self.mail.remove(taken)
        for word in batch.get("replies", ()):
            self._settle_update(run, batch, *word)
        for _, call in batch.get("draws", ()):
            for key in list(self.reserved):
                if key == (run_id, call) or (call is None and key[0] == run_id):
                    self._purse += self.reserved.pop(key)
        answer = self._answer(run, batch["questions"][0]) if "questions" in batch else None
        for run_id in batch.get("locking", ()):
            self._end_locks(self.runs[run_id])
        for _, status, reason, output, error, *_ in batch.get("ends", ()):
            self._end(run, status, reason, output, error)
        return None, None if answer is None else read_answer(json.loads(json.dumps(answer)))

    def _settle_update(
        self,
        run: StoredRun,
        batch: dict[str, Any],
        run_id: int,
        chain_id: int,
        update_id: str,
        mail_id: int | None,
        seq: int | None,
        status: str | None,
        error: str | None,
    ) -> None:
        """Takes an update out of the mailbox, and writes down its answer: the first one counts."""
        assert (run_id, chain_id) == (run.run_id, run.chain_id)
        if mail_id is not None:
            (taken,) = [m for m in self.mail if (m.mail_id, m.kind) == (mail_id, "u")]
            if status is None:
                assert any(
                    row[3:6] == [Kind.UPDATE_TAKEN, taken.name, taken.payload]
                    for row in batch["units"]
                )
            self.mail.remove(taken)
        if seq is not None:
            assert run.units[seq - 1].kind == Kind.UPDATE_REPLIED
        assert (error is None) == (status != "rejected")
        if status is not None and self.replies[update_id] == "waiting":
            self.replies[update_id] = status

    def append(self, run: StoredRun, rows: list[list[Any]]) -> None:
        """Inserts units as they travel; their primary key is (run, seq)."""
        for run_id, seq, call, kind, name, payload, starts, at_us, delay, token, *_ in rows:
            assert run_id == run.run_id
            assert seq == run.last_seq + 1, f"seq {seq} after {run.last_seq}"
            due_us = None if delay is None else self.now_us + round(delay * SECOND)
            run.units.append(
                Unit(
                    seq,
                    call,
                    kind,
                    name,
                    payload,
                    None if starts is None else json.loads(starts),
                    at_us,
                    due_us,
                )
            )
            self._writers[run_id, seq] = token

    def fence(self, run: StoredRun, token: int, rows: str) -> int | None:
        """``fence_step`` and COMMIT of a transactional step; None if the lease is lost."""
        if run.place != "leased" or run.token != token:
            return None
        self.now_us += 1
        self.append(run, json.loads(f"[{rows}]"))
        return self.now_us

    # ------------------------------------------------------------ answers to questions

    def _answer(self, run: StoredRun, q: dict[str, Any]) -> dict[str, Any]:
        assert q["seq"] == run.last_seq
        goes_on = not ("hold" in q or "continue" in q)
        settled, is_lost = self._settle_locks(run, q) if goes_on else ([], False)
        if is_lost:
            return {
                "run": run.run_id,
                "units": settled,
                "place": "leased",
                "at": self.now_us,
                "pause": False,
                "postponed": True,
            }
        for chain_id in q.get("unwanted", ()):
            self._post(
                chain_id,
                "x",
                "cancel",
                json.dumps(
                    {"why": "the parent gave up waiting for it", "reason": "parent_gave_up"}
                ),
                sent_by="pgflow",
            )
        units: list[list[Any]] = [
            *settled,
            *(self._start_child(run, child) for child in q.get("children", ())),
            *(self._admit(run, call) for call in q.get("admits", ())),
        ]
        place, pause = "leased", False
        offers: list[list[Any]] = []
        for wanted in q.get("new_gates", ()):
            units.append(self._ask_gate(run, wanted))
        if "hold" in q:
            run.place, run.held, place = "held", q["hold"], "held"
        elif "continue" in q:
            self._continue(run, q["continue"], has_locks="locks" in q)
            place = "ended"
        else:
            self._expire_gates(run, q)
            self._time_out_locks(run, q)
            words = self._take_words(run)
            more, pause = self._look(run, q)
            more = words + more
            units += more
            more = more or settled or q.get("admits", [])
            if "updates" in q and not pause:
                offers = [
                    [m.mail_id, m.name, m.payload, False]
                    for m in self.mail
                    if (m.chain_id, m.kind) == (run.chain_id, "u")
                ][:2]
                more = more or offers
            if not more and not pause:
                asked, is_news = self._ask_locks(run, q)
                units += asked
                more = asked if is_news else []
            if not more and pause and q["idle"]:
                self._pause(run)
                place = "held"
            elif not more and not pause and q.get("park"):
                self._park(run, q)
                place = "parked"
        answer = {
            "run": run.run_id,
            "units": units,
            "place": place,
            "at": self.now_us,
            "pause": pause,
        }
        return {**answer, "offers": offers} if offers else answer

    def _take_words(self, run: StoredRun) -> list[list[Any]]:
        """Record what somebody has said of obligations that are open."""
        units = []
        for m in [m for m in self.mail if m.kind == "e" and m.run_id == run.run_id]:
            self.mail.remove(m)
            key = json.loads(m.payload or "{}")["obligation"]
            opened = run.owed().get(key)
            if opened is not None:
                said = {"word": True, "key": key, "verdict": "discharged", "by": m.sent_by}
                said |= {"why": None, "to": None, "evidence": None}
                units.append(
                    self._decide(
                        run, opened.call, Kind.OBLIGATION_CLOSED, opened.name, json.dumps(said)
                    )
                )
        return units

    def _decide(
        self, run: StoredRun, call: int, kind: str, name: str | None, payload: str | None
    ) -> list[Any]:
        unit = Unit(run.last_seq + 1, call, kind, name, payload, None, self.now_us, None)
        run.units.append(unit)
        self._writers[run.run_id, unit.seq] = run.token
        return list(unit[:5])

    def _admit(self, run: StoredRun, asked: dict[str, Any]) -> list[Any]:
        """Reserve dollars of the purse for a call, or refuse it."""
        call, name, usd = asked["call"], asked["name"], Decimal(asked["amounts"]["usd"])
        if usd > self._purse or not self._purse:
            lack = {"limit": f"{PURSE}", "left": _text(self._purse), "asked": _text(usd)}
            refused = {"reason": "used_up", "pool": "purse", "unit": "usd", **lack}
            return self._decide(run, call, Kind.BUDGET_REFUSED, name, json.dumps(refused))
        self._purse -= usd
        self.reserved[run.run_id, call] = usd
        told = json.dumps({"pool": "purse", "amounts": {"usd": float(usd)}})
        row = self._decide(run, call, Kind.BUDGET_ADMITTED, name, told)
        if "licence" in asked:
            run.units[-1] = run.units[-1]._replace(starts=[asked["licence"]])
        return row

    def _start_child(self, run: StoredRun, child: list[Any]) -> list[Any]:
        call, workflow, _queue, text, key, *_rest = child
        policy = child[10]
        known = self.runs.get(self.keys.get(key or "", 0))
        if known is None:
            made = self._insert(self.workflows[workflow], text, key, (run.run_id, call), policy)
            return self._decide(
                run,
                call,
                Kind.CHILD_STARTED,
                workflow,
                json.dumps({"run_id": made.run_id, "key": made.key}),
            )
        if (known.workflow.name, json.loads(known.input), known.parent) == (
            workflow,
            json.loads(text),
            (run.run_id, call),
        ):
            return self._decide(
                run,
                call,
                Kind.CHILD_STARTED,
                workflow,
                json.dumps({"run_id": known.run_id, "key": known.key}),
            )
        clash = f"key {key!r} already names a run of {known.workflow.name} with another workflow, input or parent"
        error = {
            "type": "pgflow.errors.KeyConflict",
            "mro": ["pgflow.errors.KeyConflict"],
            "args": [clash],
            "message": clash,
        }
        return self._decide(
            run,
            call,
            Kind.CHILD_FINISHED,
            workflow,
            json.dumps({"status": "refused", "error": error}),
        )

    def _ask_gate(self, run: StoredRun, wanted: dict[str, Any]) -> list[Any]:
        seconds, steps = wanted["timeout"], 1 + len(wanted["escalate"])
        due_us = None if seconds is None else self.now_us + round(seconds * steps * SECOND)
        payload = json.dumps(
            {"request": json.loads(wanted["request"]), "on_timeout": wanted["on_timeout"]}
        )
        row = self._decide(run, wanted["call"], Kind.GATE_ASKED, wanted["name"], payload)
        run.units[-1] = run.units[-1]._replace(due_us=due_us)
        return [*row, due_us]

    def open_gates(self, run: StoredRun) -> list[Unit]:
        """Units that asked at gates which nobody has answered or given up."""
        over = {
            unit.call
            for unit in run.units
            if unit.kind in (Kind.GATE_ANSWERED, Kind.CALL_CANCELLED)
        }
        return [
            unit for unit in run.units if unit.kind == Kind.GATE_ASKED and unit.call not in over
        ]

    def answer_gate(self, run: StoredRun, call: int, verdict: str, value: Any = None) -> bool:
        """Answers a gate; False if it is closed."""
        asked = next((unit for unit in self.open_gates(run) if unit.call == call), None)
        is_late = asked is None or (asked.due_us is not None and asked.due_us <= self.now_us)
        if is_late or run.place == "ended" or self._has_verdict(run, call):
            return False
        self._post_verdict(run, call, asked.name or "", verdict, value)
        self.nudged.append(run.chain_id)
        return True

    def _has_verdict(self, run: StoredRun, call: int) -> bool:
        return any(m.kind == "g" and (m.run_id, m.call) == (run.run_id, call) for m in self.mail)

    def _post_verdict(
        self,
        run: StoredRun,
        call: int,
        name: str,
        verdict: str,
        value: Any = None,
        sent_us: int | None = None,
    ) -> None:
        said = {"verdict": verdict, "n": 1, "by": [], "edited": value is not None, "value": value}
        self._mail_ids += 1
        sent_us = self.now_us if sent_us is None else sent_us
        self.mail.append(
            Mail(
                self._mail_ids, run.chain_id, "g", name, sent_us, json.dumps(said), run.run_id, call
            )
        )

    def _expire_gates(self, run: StoredRun, q: dict[str, Any]) -> None:
        awaited = {call for call, _ in q.get("gates", ())}
        for unit in self.open_gates(run):
            if (
                unit.call in awaited
                and unit.due_us is not None
                and unit.due_us <= self.now_us
                and not self._has_verdict(run, unit.call)
            ):
                verdict = json.loads(unit.payload or "{}")["on_timeout"]
                self._post_verdict(run, unit.call, unit.name or "", verdict, sent_us=unit.due_us)

    def _look(self, run: StoredRun, q: dict[str, Any]) -> tuple[list[list[Any]], bool]:
        """Return the units of things that have happened, first things first; a signal or a cancel
        only as the first of its look.
        """
        units: list[list[Any]] = []
        asked = [m for m in self.mail if m.chain_id == run.chain_id and m.kind in "pr"]
        pause = bool(asked) and asked[-1].kind == "p"
        if not pause:
            self.mail = [m for m in self.mail if m not in asked]
        for _at, call, _id, kind, name, mail in sorted(
            self._happenings(run, q), key=lambda h: h[:3]
        ):
            if kind in ("x", Kind.SIGNAL_RECEIVED, Kind.GATE_ANSWERED):
                if units:
                    break
                self.mail.remove(mail)
                if kind == "x" and q["cancelled"]:
                    continue
            elif mail is not None:
                self.mail.remove(mail)
            payload = mail.payload if mail is not None else None
            if kind == "x":
                payload = json.dumps({**json.loads(payload), "by": mail.sent_by})
            named = (
                self.runs[json.loads(payload)["run_id"]].workflow.name
                if kind == Kind.CHILD_FINISHED
                else name
            )
            units.append(self._decide(run, call, kind, named, payload))
            if kind in ("x", Kind.SIGNAL_RECEIVED, Kind.GATE_ANSWERED):
                break
        return units, pause

    def _happenings(
        self, run: StoredRun, q: dict[str, Any]
    ) -> Iterator[tuple[int, int, float, str, str | None, Any]]:
        mine = [m for m in self.mail if m.chain_id == run.chain_id]
        for m in mine:
            if m.kind == "x":
                yield m.sent_us, 0, m.mail_id, m.kind, m.name, m
            elif (
                m.kind == "c"
                and m.run_id == run.run_id
                and _is_in(m.call, q.get("child_calls", "{}"))
            ):
                yield m.sent_us, m.call, m.mail_id, Kind.CHILD_FINISHED, m.name, m
            elif (
                m.kind == "g"
                and m.run_id == run.run_id
                and any(call == m.call for call, _ in q.get("gates", ()))
            ):
                yield m.sent_us, m.call or 0, m.mail_id, Kind.GATE_ANSWERED, m.name, m
        for call, key, *_ in q.get("locks", ()):
            for m in mine:
                if (m.kind, m.name, m.run_id, m.call) == ("l", key, run.run_id, call):
                    said = json.loads(m.payload)
                    kind = Kind.LOCK_WON if "fence" in said else Kind.WAIT_TIMED_OUT
                    kind = Kind.LOCK_RELEASED if "refused" in said else kind
                    yield m.sent_us, call, m.mail_id, kind, key, m
        for call, name in q.get("signals", ()):
            first = next((m for m in mine if m.kind == "s" and m.name == name), None)
            if first is not None:
                yield first.sent_us, call, first.mail_id, Kind.SIGNAL_RECEIVED, name, first
        for call, seq, kind in q.get("timers", ()):
            unit = run.units[seq - 1]
            assert unit.due_us is not None
            if unit.due_us <= self.now_us:
                yield unit.due_us, call, float("inf"), kind, unit.name, None

    def _park(self, run: StoredRun, q: dict[str, Any]) -> None:
        run.place = "parked"
        run.waits = {
            name: q[name]
            for name in ("signals", "child_calls", "open_effects", "gates", "locks", "updates")
            if q.get(name)
        }
        run.due_us = [
            run.units[w[1] - 1].due_us for w in [*q.get("timers", ()), *q.get("retries", ())]
        ]
        awaited = {call for call, _ in q.get("gates", ())}
        run.due_us += [
            unit.due_us
            for unit in self.open_gates(run)
            if unit.call in awaited and unit.due_us is not None
        ]
        if run.waits:
            self.nudged.append(run.chain_id)

    def _pause(self, run: StoredRun) -> None:
        for m in [m for m in self.mail if m.chain_id == run.chain_id and m.kind in "pr"]:
            self.mail.remove(m)
            self._note_operator(run, m.name, json.loads(m.payload or "{}").get("why"))
        run.place, run.held = "held", ["paused", "paused", None, None, self.person]

    def _continue(self, run: StoredRun, text: str, *, has_locks: bool) -> None:
        self._ids += 1
        self._decide(run, 0, Kind.CONTINUED, None, json.dumps({"run_id": self._ids}))
        self.runs[self._ids] = replace(
            run,
            run_id=self._ids,
            generation=run.generation + 1,
            input=text,
            created_us=self.now_us,
            units=[],
            place="ready",
            token=0,
            attempt=0,
            waits={},
            due_us=[],
        )
        if has_locks:
            unheard = {m.call for m in self.mail if m.kind == "l" and m.run_id == run.run_id}
            self.locks = [
                h._replace(run_id=self._ids, call=0)
                if h.run_id == run.run_id and h.call not in unheard and not self._is_over(h)
                else h
                for h in self.locks
            ]
            self._end_locks(run)
        run.place, run.status = "ended", "continued"

    # ------------------------------------------------------------ locks

    def _is_over(self, held: Held) -> bool:
        return held.expires_us is not None and held.expires_us <= self.now_us

    def _win(self, wait: Queued) -> Held:
        self._fences += 1
        expires_us = (
            None if wait.ttl_seconds is None else self.now_us + round(wait.ttl_seconds * SECOND)
        )
        held = Held(self._fences, wait.key, wait.run_id, wait.call, wait.is_shared, expires_us)
        self.locks.append(held)
        return held

    def _grant(self, key: str) -> None:
        """Serves the queue of a key, as far as it goes."""
        self.locks = [h for h in self.locks if h.key != key or not self._is_over(h)]
        for wait in [w for w in self.queue if w.key == key]:
            if any(h.key == key and not (h.is_shared and wait.is_shared) for h in self.locks):
                return
            self.queue.remove(wait)
            held = self._win(wait)
            chain_id = self.runs[wait.run_id].chain_id
            said = json.dumps({"fence": held.fence})
            self._post(chain_id, "l", key, said, wait.run_id, wait.call, "pgflow")

    def _end_locks(self, run: StoredRun) -> None:
        self.queue = [w for w in self.queue if w.run_id != run.run_id]
        freed = {h.key for h in self.locks if h.run_id == run.run_id}
        self.locks = [h for h in self.locks if h.run_id != run.run_id]
        self.mail = [m for m in self.mail if not (m.kind == "l" and m.run_id == run.run_id)]
        for key in sorted(freed):
            self._grant(key)

    def _settle_locks(self, run: StoredRun, q: dict[str, Any]) -> tuple[list[list[Any]], bool]:
        """Takes back what the code gives back, and finds what is lost: the units, and whether
        something was lost.
        """
        units, freed, is_lost = [], [], False
        for call in q.get("unlocks", ()):
            place = run.run_id, call
            self.queue = [w for w in self.queue if (w.run_id, w.call) != place]
            freed += [h.key for h in self.locks if (h.run_id, h.call) == place]
            self.locks = [h for h in self.locks if (h.run_id, h.call) != place]
            self.mail = [
                m for m in self.mail if not (m.kind == "l" and (m.run_id, m.call) == place)
            ]
        for call, key, fence, is_given_back in q.get("holds", ()):
            held = next((h for h in self.locks if (h.fence, h.run_id) == (fence, run.run_id)), None)
            counts = held is not None and not self._is_over(held)
            if counts and not is_given_back:
                continue
            if held is not None:
                self.locks.remove(held)
                freed.append(key)
            said = {"fence": fence} if counts else {"fence": fence, "lost": "expired"}
            is_lost = is_lost or not (counts or is_given_back)
            units.append(self._decide(run, call, Kind.LOCK_RELEASED, key, json.dumps(said)))
        for key in freed:
            self._grant(key)
        return units, is_lost

    def _time_out_locks(self, run: StoredRun, q: dict[str, Any]) -> None:
        for call, key, _, _, seq, _ in q.get("locks", ()):
            wait = next((w for w in self.queue if (w.run_id, w.call) == (run.run_id, call)), None)
            due_us = None if seq is None else run.units[seq - 1].due_us
            if wait is not None and due_us is not None and due_us <= self.now_us:
                self.queue.remove(wait)
                said = json.dumps({"timed_out": True})
                self._post(run.chain_id, "l", key, said, run.run_id, call, "pgflow", due_us)

    def _ask_locks(self, run: StoredRun, q: dict[str, Any]) -> tuple[list[list[Any]], bool]:
        """Asks for locks: the units, and whether they say more than that it waits."""
        units: list[list[Any]] = []
        is_news = False
        for call, key, is_shared, ttl_seconds, _, within in q.get("locks", ()):
            kind, said = self._ask_lock(
                run, Queued(key, run.run_id, call, is_shared, ttl_seconds, within)
            )
            if kind is not None:
                units.append(self._decide(run, call, kind, key, json.dumps(said)))
                is_news = is_news or kind != Kind.LOCK_ASKED
        return units, is_news

    def _ask_lock(self, run: StoredRun, wait: Queued) -> tuple[str | None, dict[str, Any]]:
        for h in self.locks:
            if (h.key, h.run_id, h.call, h.is_shared) == (wait.key, run.run_id, 0, wait.is_shared):
                self.locks[self.locks.index(h)] = h._replace(call=wait.call)
                return Kind.LOCK_WON, {"fence": h.fence}
        self.locks = [
            h for h in self.locks if (h.key, h.run_id, h.call) != (wait.key, run.run_id, 0)
        ]
        place = run.run_id, wait.call
        if any((w.run_id, w.call) == place for w in self.queue) or any(
            (h.run_id, h.call) == place for h in self.locks
        ):
            return None, {}
        self.queue.append(wait)
        self._grant(wait.key)
        told = [m for m in self.mail if m.kind == "l" and (m.run_id, m.call) == place]
        if told:
            self.mail.remove(told[0])
            return Kind.LOCK_WON, json.loads(told[0].payload or "{}")
        if self._closes_circle(wait):
            self.queue.remove(wait)
            return Kind.LOCK_RELEASED, {"refused": "deadlock"}
        return Kind.LOCK_ASKED, {"shared": wait.is_shared}

    def _closes_circle(self, wait: Queued) -> bool:
        keys, seen = [wait.key], set[int]()
        while keys:
            key = keys.pop()
            for held in self.locks:
                if held.key == key and held.fence not in seen:
                    seen.add(held.fence)
                    keys += [w.key for w in self.queue if held.fence in w.within]
        return bool(seen & set(wait.within))

    def _end(
        self, run: StoredRun, status: str, reason: str | None, output: str | None, error: str | None
    ) -> None:
        run.place, run.status, run.reason, run.output, run.error = (
            "ended",
            status,
            reason,
            output,
            error,
        )
        self.mail = [m for m in self.mail if m.chain_id != run.chain_id]
        if run.parent is not None and self.runs[run.parent[0]].place != "ended":
            head = {"status": status, "reason": reason, "run_id": run.run_id}
            payload = f'{json.dumps(head)[:-1]}, "output" : {output or "null"}, "error" : {error or "null"}}}'
            parent = self.runs[run.parent[0]]
            self._post(
                parent.chain_id, "c", str(run.parent[1]), payload, parent.run_id, run.parent[1]
            )
            self._told_parent = parent
        for child in list(self.runs.values()):
            if (
                child.parent is not None
                and child.parent[0] == run.run_id
                and child.place != "ended"
                and child.close_policy == "c"
            ):
                self._post(
                    child.chain_id,
                    "x",
                    "cancel",
                    json.dumps({"why": "the parent run ended", "reason": "parent_ended"}),
                    sent_by="pgflow",
                )


def _text(amount: Decimal) -> str:
    """A number without zeros behind its point, as the database writes it."""
    return f"{amount.normalize():f}"


def _is_in(number: int | None, ranges: str) -> bool:
    """Return True if a number is in ranges as a question writes them: ``{[1,3],[7,7]}``."""
    return any(
        number is not None and first <= number <= last
        for first, last in json.loads(f"[{ranges[1:-1]}]")
    )
