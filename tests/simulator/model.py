"""The oracle: what the database may hold after a transaction, given what it held before and what
was asked of it.

The model knows every statement that was sent, by whom and within which transaction, and reads every
change that a commit made visible. Each change must be explained by a statement of the transactions
that have just ended, under the rules of the house: one place a run, every unit under the token of
the lease that was there, every message taken once and in order, every row of the application beside
its unit, no timer before its time, an outcome for good. What does not fit raises :class:`Broken`,
with the promise that it breaks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from tests.simulator.mirror import PLACES, Line, Mirror
from tests.simulator.programs import Impossible, Journal, Op, Unit


class Broken(Exception):
    """A promise is broken: which, and how."""

    def __init__(self, guarantee: str, what: str) -> None:
        super().__init__(f"{guarantee}: {what}")
        self.guarantee = guarantee


@dataclass
class Act:
    """One call of a stored function, as its sender meant it."""

    kind: str
    data: dict[str, Any] = field(default_factory=dict)
    rows: list[Any] = field(default_factory=list)
    began: int = 0
    """The look before the call was sent."""


@dataclass
class Transaction:
    """Transaction of one actor, between BEGIN and its end."""

    actor: str
    acts: list[Act] = field(default_factory=list)
    committed: bool = False
    low_us: int = 0
    high_us: int = 0
    """Highest time of the clock meanwhile; `low_us` is the lowest."""


@dataclass
class Run:
    """A run as far as it has been read."""

    run_id: int
    chain: int
    generation: int
    parent: int | None
    parent_call: int | None
    journal: Journal
    tokens: list[int] = field(default_factory=list)
    """The token of each unit, by seq."""
    booked: set[int] = field(default_factory=set)
    due: dict[int, int] = field(default_factory=dict)
    """Time at which the timer of a call is due."""
    outcome: tuple[str, int | None] | None = None


@dataclass
class Mail:
    chain: int
    kind: str
    name: str
    run: int
    call: int
    payload: str
    since: int


class Model:
    """All that is known, kept up by :meth:`judge`."""

    def __init__(self, mirror: Mirror, limited: set[int], limit: int) -> None:
        self.mirror = mirror
        self.limited = {str(lane) for lane in limited}
        """Lanes of the queue with a limit, of which so many runs may be leased at once."""
        self.limit = limit
        self.looks = 0
        self.runs: dict[int, Run] = {}
        self.newest: dict[int, int] = {}
        self.keys: dict[str, tuple[int, list[Op]]] = {}
        """Keys that name a chain, with the program that was asked for."""
        self.place: dict[int, Line] = {}
        self.waits: dict[int, list[Line]] = defaultdict(list)
        self.timers: dict[int, list[Line]] = defaultdict(list)
        self.mail: dict[int, Mail] = {}
        self.nudges: Counter[int] = Counter()
        self.workers: dict[int, int] = {}
        self.deadlines: dict[int, int] = {}
        self.locks: dict[int, Line] = {}
        """Holders, by their fences."""
        self.fences: Counter[str] = Counter()
        """The greatest fence of each key."""
        self.fences_alone: Counter[str] = Counter()
        """The greatest of those that were not shared."""
        self.aside: set[int] = set()
        self.scheduled: dict[str, list[list[Op]]] = defaultdict(list)
        """Programs that each schedule was told to start."""
        self.high_us = 0
        """Highest time that the clock has shown: a slot that was due then may have waited for the
        end of the run before it, and the clock may have gone back meanwhile.
        """
        self.seen_us: dict[tuple[int, int], int] = {}
        """Time that the clock showed when a worker found the timer of a run's call due and fired it
        without a question: the clock may have gone back before the commit.
        """
        self.sent: dict[str, str] = {}
        """Every signal that was committed, by its payload: "mail", then "taken" or "aside"."""
        self.updates: dict[tuple[str, str], list[Any]] = {}
        """Every update that was committed, by key and id: "mail", "taken", "aside", or its answer,
        with the value.
        """
        self.replies: dict[tuple[str, str], tuple[str, int | None]] = {}
        """Last answers that those who asked were given."""
        self.tested: Counter[str] = Counter()
        """Number of times that each promise was put to the test."""
        self.changed = False
        self.was_waiting: dict[int, tuple[tuple[Line, ...], tuple[Line, ...]]] = {}
        self.just_gone: dict[int, Mail] = {}

    # ---------------------------------------------------------------- one look

    def judge(self, ended: list[Transaction]) -> tuple[list[Line], list[Line]]:
        """Reads what has changed, and finds it explained by these transactions, or raises."""
        came, went = self.mirror.look()
        for transaction in ended:
            transaction.high_us = max(transaction.high_us, self.mirror.now_us)
        self.looks += 1
        acts = [act for t in ended if t.committed for act in t.acts]
        self.changed = bool(came or went or acts)
        if not acts:
            if came or went:
                raise Broken("G2", f"a transaction that did not commit left {came} and took {went}")
            self.tested["G2"] += 1
            return came, went
        self._judge_deaths(came, went, acts)
        before = {
            run: self.place.get(run)
            for line in (*came, *went)
            if line[0] in PLACES
            for run in [int(line[1])]
        }
        self.was_waiting = {
            run: (tuple(self.waits[run]), tuple(self.timers[run]))
            for run, line in before.items()
            if line is not None and line[0] == "p"
        }
        mail_came, mail_went = self._take_over(came, went)
        self.just_gone = mail_went
        affected = set(before) | _meant(acts)
        times = (min(t.low_us for t in ended), max(t.high_us for t in ended))
        self.high_us = max(self.high_us, times[1])
        self._read_grown(affected, before, acts, mail_went, times)
        self._judge_places(before, acts, times, alone=len(ended) == 1)
        self._judge_mail(mail_came, mail_went, acts)
        self._judge_invariants(
            {int(line[1]) for line in (*came, *went) if line[0] in "rlphwt"} | affected
        )
        self._judge_nudges(
            {self.runs[r].chain for r in affected if r in self.runs}
            | {int(x[1]) for x in (*came, *went) if x[0] in "sn"}
        )
        self._judge_answers(acts)
        if any(line[0] == "l" for line in came):
            self._judge_limit()
        return came, went

    def _take_over(
        self, came: list[Line], went: list[Line]
    ) -> tuple[dict[int, Mail], dict[int, Mail]]:
        """Makes the rows that changed one's own; answers the mail that came and that went."""
        mail_came: dict[int, Mail] = {}
        mail_went: dict[int, Mail] = {}
        for line in went:
            table, number = line[0], int(line[1])
            if table in PLACES:
                self.place.pop(number, None)
            elif table == "w":
                self.waits[number].remove(line)
            elif table == "t":
                self.timers[number].remove(line)
            elif table == "s":
                mail_went[int(line[2])] = self.mail.pop(int(line[2]))
            elif table == "n":
                self.nudges[number] -= 1
            elif table == "k":
                self.workers.pop(number, None)
            elif table == "d":
                self.deadlines.pop(number, None)
            elif table == "q":
                del self.locks[number]
        for line in came:
            table, number = line[0], int(line[1])
            if table in PLACES:
                if number in self.place:
                    raise Broken(
                        "G28", f"run {number} has two places: {self.place[number]} and {line}"
                    )
                self.place[number] = line
            elif table == "w":
                self.waits[number].append(line)
            elif table == "t":
                self.timers[number].append(line)
            elif table == "s":
                mail = Mail(
                    number, line[3], line[4], int(line[5]), int(line[6]), line[7], self.looks
                )
                self.mail[int(line[2])] = mail_came[int(line[2])] = mail
            elif table == "n":
                self.nudges[number] += 1
            elif table == "k":
                self.workers[number] = int(line[2])
            elif table == "d":
                self.deadlines[number] = int(line[2])
        # Several may win at once, one after the other.
        for line in sorted((x for x in came if x[0] == "q"), key=lambda x: int(x[1])):
            self._judge_holder(int(line[1]), line)
        return mail_came, mail_went

    def _judge_holder(self, fence: int, line: Line) -> None:
        """Judge that a lock was won by one alone, later than by all before, or by several that share it,
        later than by the last one that had it alone.

        Of those that share it, one that takes it again may commit behind one that came later.
        """
        _, _, key, holder, is_shared = line
        beside = [other for other in self.locks.values() if other[2] == key]
        if any(is_shared == "false" or other[4] == "false" for other in beside):
            raise Broken("G28", f"lock {key} was won by {holder}, and is held by {beside}")
        before = (self.fences_alone if is_shared == "true" else self.fences)[key]
        if fence <= before:
            raise Broken("G28", f"lock {key} was won with fence {fence} after fence {before}")
        self.locks[fence] = line
        self.fences[key] = max(fence, self.fences[key])
        if is_shared == "false":
            self.fences_alone[key] = fence
        self.tested["G28"] += 1

    # ---------------------------------------------------------------- what grows

    def _read_grown(
        self,
        affected: set[int],
        before: dict[int, Line | None],
        acts: list[Act],
        mail_went: dict[int, Mail],
        times: tuple[int, int],
    ) -> None:
        if not affected:
            return
        read = self.mirror.grown(
            {r: self.runs[r].journal.seq if r in self.runs else 0 for r in sorted(affected)}
        )
        for found in read:  # by number: a generation after the one before, a child after its parent
            if found["run"] not in self.runs:
                self._judge_birth(found, acts)
            self._judge_growth(
                found,
                before.get(found["run"], self.place.get(found["run"])),
                acts,
                mail_went,
                times,
            )

    def _judge_birth(self, found: dict[str, Any], acts: list[Act]) -> None:
        run_id, chain, generation = found["run"], found["chain"], found["generation"]
        run = Run(run_id, chain, generation, found["parent"], found["call"], Journal(found["ops"]))
        if generation > 1:
            self.tested["G37"] += 1
            old = self.runs[self.newest[chain]]
            if (
                old.generation != generation - 1
                or not old.journal.continued
                or old.journal.op is None
                or old.journal.op[1] != found["ops"]
            ):
                raise Broken(
                    "G37", f"generation {generation} of chain {chain} does not follow {old}"
                )
        elif run.parent is None and found["key"].partition("/")[0] in self.scheduled:
            self._judge_slot(found, acts)
        elif run.parent is None:
            if not any(
                a.kind == "start"
                and a.data["key"] == found["key"]
                and a.data["ops"] == found["ops"]
                for a in acts
            ):
                raise Broken(
                    "G5",
                    f"run {run_id} with key {found['key']} was started by nobody whose transaction "
                    "has committed",
                )
            if found["key"] in self.keys:
                raise Broken(
                    "G4",
                    f"key {found['key']} names chain {self.keys[found['key']][0]} and chain {chain}",
                )
            self.tested["G5"] += 1
        if generation == 1:
            if found["key"] in self.keys:
                raise Broken("G4", f"key {found['key']} names two chains")
            self.keys[found["key"]] = (chain, found["ops"])
        self.runs[run_id] = run
        self.newest[chain] = run_id

    def _judge_slot(self, found: dict[str, Any], acts: list[Act]) -> None:
        """A slot has one run, which whoever fires or asks for it has started, and not before the
        clock has reached it.
        """
        name, _, slot = found["key"].partition("/")
        if (
            not any(a.kind in ("fire", "trigger") for a in acts)
            or found["ops"] not in self.scheduled[name]
        ):
            raise Broken("G23", f"slot {found['key']} was fired by nobody, or is another's")
        if found["key"] in self.keys:
            raise Broken("G23", f"slot {found['key']} has two runs")
        if datetime.fromisoformat(slot).timestamp() * 1e6 > self.high_us:
            raise Broken(
                "G23", f"slot {found['key']} has a run, and it was never later than {self.high_us}"
            )
        self.tested["G23"] += 1

    def _judge_growth(
        self,
        found: dict[str, Any],
        before: Line | None,
        acts: list[Act],
        mail_went: dict[int, Mail],
        times: tuple[int, int],
    ) -> None:
        run = self.runs[found["run"]]
        lease = int(before[2]) if before is not None and before[0] == "l" else None
        booked = []
        for seq, call, kind, name, payload, token, recorded_us, due_us in found["units"] or ():
            u = Unit(seq, call, kind, name, payload)
            if run.outcome is not None:
                raise Broken("G6", f"run {run.run_id} has ended and records {u}")
            if kind != "o":
                if token != lease:
                    raise Broken(
                        "G7",
                        f"{u} of run {run.run_id} is under token {token}; the run was {before}",
                    )
                if not any(
                    a.kind in ("commit", "fence") and (run.run_id, token) in a.data["leases"]
                    for a in acts
                ):
                    raise Broken(
                        "G7",
                        f"nobody whose transaction has committed asked for {u} of run {run.run_id}",
                    )
            if not times[0] <= recorded_us <= times[1]:
                raise Broken(
                    "G21",
                    f"{u} of run {run.run_id} was recorded at {recorded_us}, outside of {times}",
                )
            self._judge_unit(run, u, recorded_us, due_us, acts, mail_went)
            run.tokens.append(token)
            if kind == "c" and name == "t":
                booked.append([call, token])
        self._judge_booked(run, found["booked"] or [], booked)
        if found["outcome"] is not None and run.outcome is None:
            self._judge_end(run, found["outcome"], lease, acts)
        elif found["outcome"] is not None and run.outcome != tuple(found["outcome"][:2]):
            raise Broken(
                "G6", f"the outcome of run {run.run_id} was {run.outcome} and is {found['outcome']}"
            )

    def _judge_unit(
        self,
        run: Run,
        u: Unit,
        recorded_us: int,
        due_us: int | None,
        acts: list[Act],
        mail_went: dict[int, Mail],
    ) -> None:
        try:
            run.journal.feed(u)
        except Impossible as error:
            raise Broken("G1", f"run {run.run_id}: {error}") from error
        if u.kind in "ta" and due_us is not None:
            run.due[u.call] = due_us
        elif u.kind in "TW":
            self.tested["G22"] += 1
            early_us = run.due[u.call] - max(recorded_us, self.seen_us.get((run.run_id, u.call), 0))
            if early_us > 0:
                raise Broken("G22", f"call {u.call} of run {run.run_id} fired {early_us} us early")
        elif u.kind == "S":
            self._judge_signal(run, u, acts, mail_went)
        elif u.kind == "h":
            self._judge_update(run, u, acts, mail_went)
        elif u.kind == "b":
            self.updates[self._key_of(run.chain), u.payload["id"]] = ["done", u.payload["value"]]
        elif u.kind == "K" and u.payload["status"] != "refused":
            child = self.runs.get(u.payload["run_id"])
            if child is None or child.outcome is None or child.outcome[0] != u.payload["status"]:
                raise Broken("G36", f"run {run.run_id} heard {u.payload} of {child}")
            if not any(
                m.kind == "c" and m.run == run.run_id and m.call == u.call
                for m in mail_went.values()
            ):
                raise Broken(
                    "G31",
                    f"run {run.run_id} took the result of call {u.call} and left it in the mailbox",
                )
        elif u.kind == "x" and u.call == 0:
            self._judge_cancel(run, acts, mail_went)

    def _judge_cancel(self, run: Run, acts: list[Act], mail_went: dict[int, Mail]) -> None:
        self.tested["G36"] += 1
        if any(m.kind == "x" and m.chain == run.chain for m in mail_went.values()):
            return
        # Nobody has seen the message if this very commit ended the parent, or gave the child up.
        parent = self.runs.get(run.parent or 0)
        if (parent is None or parent.outcome is None) and not any(
            run.chain in a.data.get("unwanted", ()) for a in acts
        ):
            raise Broken("G36", f"run {run.run_id} was cancelled by nobody")

    def _judge_signal(self, run: Run, u: Unit, acts: list[Act], mail_went: dict[int, Mail]) -> None:
        payload = str(u.payload)
        taken = [
            (i, m)
            for i, m in mail_went.items()
            if m.kind == "s" and m.chain == run.chain and m.name == u.name and m.payload == payload
        ]
        if self.sent.get(payload) != "mail" or len(taken) != 1:
            raise Broken(
                "G31",
                f"run {run.run_id} received {u}, which is {self.sent.get(payload)}; {len(taken)} "
                "messages went",
            )
        began = min(
            a.began
            for a in acts
            if a.kind == "commit" and any(r == run.run_id for r, _ in a.data["leases"])
        )
        number = taken[0][0]
        began = next(
            (a.data["offered"][number] for a in acts if number in a.data.get("offered", ())), began
        )
        for other, m in self.mail.items():
            if (
                other < number
                and (m.chain, m.kind, m.name) == (run.chain, "s", u.name)
                and m.since <= began
            ):
                raise Broken("G31", f"run {run.run_id} received message {number} before {other}")
        self.sent[payload] = "taken"
        self.tested["G31"] += 1

    def _key_of(self, chain: int) -> str:
        return next(key for key, (known, _) in self.keys.items() if known == chain)

    def _judge_update(self, run: Run, u: Unit, acts: list[Act], mail_went: dict[int, Mail]) -> None:
        """One is taken out of the mailbox once, by the commit that has its unit, and before those
        that were sent later, but for rejected ones.
        """
        name = self._key_of(run.chain), u.payload["id"]
        taken = [
            i
            for i, m in mail_went.items()
            if m.kind == "u" and m.chain == run.chain and m.payload == name[1]
        ]
        if self.updates.get(name) != ["mail"] or len(taken) != 1:
            raise Broken(
                "G31",
                f"run {run.run_id} took {u}, which is {self.updates.get(name)}; {len(taken)} "
                "messages went",
            )
        began = next(
            a.data["offered"][taken[0]] for a in acts if taken[0] in a.data.get("offered", ())
        )
        for other, m in self.mail.items():
            if other < taken[0] and (m.chain, m.kind) == (run.chain, "u") and m.since <= began:
                raise Broken("G31", f"run {run.run_id} took update {taken[0]} before {other}")
        self.updates[name] = ["taken"]
        self.tested["G31"] += 1

    def judge_reply(self, key: str, update_id: str, status: str, value: int | None) -> None:
        """An answer is the one that the journal has, and stays the same."""
        name = key, update_id
        known = self.replies.setdefault(name, (status, value)) if status != "waiting" else None
        if known not in (None, (status, value)):
            raise Broken("G31", f"update {name} was answered {known}, and {(status, value)} later")
        if status == "waiting" and name in self.replies:
            raise Broken("G31", f"update {name} was answered {self.replies[name]}, and waits again")
        if status == "done" and self.updates[name] != ["done", value]:
            raise Broken(
                "G31", f"update {name} is {self.updates[name]}, and its sender reads {value}"
            )
        self.tested["G31"] += status != "waiting"

    def _judge_booked(self, run: Run, there: list[list[int]], recorded: list[list[int]]) -> None:
        calls = [call for call, _ in there]
        run.booked.update(call for call, _ in recorded)
        if sorted(calls) != sorted(run.booked):
            raise Broken(
                "G1",
                f"run {run.run_id} recorded the transactional calls {sorted(run.booked)}; the "
                f"application has {sorted(calls)}",
            )
        for entry in recorded:
            self.tested["G1"] += 1
            if entry not in there:
                raise Broken(
                    "G7",
                    f"the row of call {entry[0]} of run {run.run_id} is of another holder than "
                    f"{entry[1]}: {there}",
                )

    def _judge_end(self, run: Run, outcome: list[Any], lease: int | None, acts: list[Act]) -> None:
        status, token, reason, _ = outcome
        self.tested["G6"] += 1
        if token is not None:
            if token != lease:
                raise Broken(
                    "G7",
                    f"the outcome of run {run.run_id} is under token {token}, its lease was {lease}",
                )
            asked = [a.data["endings"].get(run.run_id) for a in acts if a.kind == "commit"]
            forced = any(a.kind == "commit" for a in acts) and status == "cancelled"
            if status not in asked and not forced:
                raise Broken("G6", f"run {run.run_id} is {status}; asked for was {asked}")
        elif status != "cancelled" or not any(a.kind in ("wake", "poll") for a in acts):
            raise Broken("G6", f"run {run.run_id} is {status} ({reason}) by nobody's word")
        run.outcome = (status, token)

    # ---------------------------------------------------------------- places

    def _judge_places(
        self,
        before: dict[int, Line | None],
        acts: list[Act],
        times: tuple[int, int],
        *,
        alone: bool,
    ) -> None:
        for run_id, old in before.items():
            new = self.place.get(run_id)
            self.tested["G28"] += new is not None and new[0] == "l"
            self.tested["G14"] += any(a.kind == "reap" for a in acts)
            if run_id not in self.runs:
                raise Broken("G28", f"run {run_id} went from {old} to {new} and does not exist")
            if (new is None) == (self.runs[run_id].outcome is None):
                raise Broken(
                    "G28",
                    f"run {run_id} has the place {new} and the outcome {self.runs[run_id].outcome}",
                )
            # What waited for another's end may have ended together with it: two steps at one look.
            if alone and not any(self._explains(act, run_id, old, new) for act in acts):
                raise Broken(
                    "G28",
                    f"nothing that was asked moves run {run_id} from {old} to {new}: "
                    f"{[a.kind for a in acts]}",
                )
            if (
                alone
                and old is not None
                and old[0] == "p"
                and new is not None
                and new[0] == "r"
                and not self._has_reason(run_id, times)
            ):
                raise Broken(
                    "G22",
                    f"run {run_id} was woken without a reason; it waited for "
                    f"{self.was_waiting.get(run_id)} until {times}",
                )
            if (
                new is not None
                and new[0] in "rph"
                and self._last_seq(new) != self.runs[run_id].journal.seq
            ):
                raise Broken(
                    "G1",
                    f"run {run_id} has {self.runs[run_id].journal.seq} units; its place says {new}",
                )

    def _judge_limit(self) -> None:
        leased = sum(
            1 for line in self.place.values() if line[0] == "l" and line[4] in self.limited
        )
        self.tested["G24"] += leased == self.limit
        if leased > self.limit:
            raise Broken("G24", f"{leased} runs of a queue are leased; {self.limit} may be")

    @staticmethod
    def _last_seq(place: Line) -> int:
        return int(place[{"r": 3, "p": 2, "h": 2}[place[0]]])

    def _explains(self, act: Act, run_id: int, old: Line | None, new: Line | None) -> bool:
        a, b = old[0] if old else "", new[0] if new else ""
        if act.kind in ("start", "fire", "trigger"):
            return not a and b in "rp" and self.runs[run_id].parent is None
        claim = act.data if act.kind == "claim" else act.data.get("claim")
        if (
            claim is not None
            and new is not None
            and b == "l"
            and (a == "r" or not a and act.kind == "commit")
        ):
            return int(new[2]) in claim["tokens"] and int(new[3]) == claim["worker"]
        if act.kind == "commit":
            if not a:  # a child, or the next generation
                return b in "rp"
            return (
                a == "l"
                and b in ("", "p", "h")
                and old is not None
                and (run_id, int(old[2])) in act.data["leases"]
            )
        if act.kind == "release":
            return (
                a == "l"
                and b == "r"
                and old is not None
                and (run_id, int(old[2])) in act.data["leases"]
            )
        if act.kind == "strays":
            return (
                a == "l"
                and b == "r"
                and old is not None
                and int(old[3]) == act.data["worker"]
                and run_id not in act.data["known"]
            )
        if act.kind == "reap":
            return (
                a == "l"
                and b in ("r", "h")
                and old is not None
                and int(old[3]) == act.data["worker"]
            )
        if act.kind == "send":
            return act.data["delivers"] and (a, b) == ("p", "r")
        if act.kind in ("wake", "poll"):
            return (a, b) in (
                ("p", "r"),
                ("p", "h"),
                ("p", ""),
                ("r", "h"),
                ("r", ""),
                ("h", "r"),
                ("h", "p"),
                ("h", ""),
            )
        return False

    def _judge_deaths(self, came: list[Line], went: list[Line], acts: list[Act]) -> None:
        """A worker that goes has taken its leave, or its beat was the one that was observed."""
        there = {line[1] for line in came if line[0] == "k"}
        for line in went:
            if line[0] == "k" and line[1] not in there:
                worker, beat = int(line[1]), int(line[2])
                by_reaper = any(
                    a.kind == "reap" and (a.data["worker"], a.data["beat"]) == (worker, beat)
                    for a in acts
                )
                if not by_reaper and not any(
                    a.kind == "leave" and a.data["worker"] == worker for a in acts
                ):
                    raise Broken(
                        "G14",
                        f"worker {worker} with beat {beat} was declared dead: "
                        f"{[a.data for a in acts if a.kind == 'reap']}",
                    )

    def _has_reason(self, run_id: int, times: tuple[int, int]) -> bool:
        """Return True if a parked run may go on: as it was parked, before this commit."""
        waits, timers = self.was_waiting.get(run_id, ((), ()))
        chain = self.runs[run_id].chain
        if any(int(timer[3]) <= times[1] for timer in timers):
            return True
        mails = [m for m in (*self.mail.values(), *self.just_gone.values()) if m.chain == chain]
        return any(m.kind in "xprt" or any(self._wakes(m, w) for w in waits) for m in mails)

    # ---------------------------------------------------------------- mail

    def _judge_mail(self, came: dict[int, Mail], went: dict[int, Mail], acts: list[Act]) -> None:
        for m in came.values():
            if m.kind == "s":
                if m.payload in self.sent:
                    raise Broken("G31", f"message {m} was sent once and came again")
                if not any(a.kind == "send" and str(a.data["payload"]) == m.payload for a in acts):
                    raise Broken(
                        "G5", f"message {m} was sent by nobody whose transaction has committed"
                    )
                self.sent[m.payload] = "mail"
                self.tested["G5"] += 1
            elif m.kind == "u":
                self._judge_asked(m, acts)
        self._judge_unasked(went, acts)
        missing = {
            i: m for i, m in went.items() if m.kind == "s" and self.sent[m.payload] == "mail"
        }
        if missing:
            aside = self.mirror.aside({m.chain for m in missing.values()})
            for i, m in missing.items():
                if i not in aside:
                    raise Broken("G31", f"message {i} is gone and nobody took it: {m}")
                if self.runs[self.newest[m.chain]].outcome is None:
                    raise Broken("G31", f"message {i} was put aside while chain {m.chain} goes on")
                self.sent[m.payload] = "aside"

    def _judge_asked(self, m: Mail, acts: list[Act]) -> None:
        name = self._key_of(m.chain), m.payload
        if name in self.updates:
            raise Broken("G31", f"update {name} was sent once and came again")
        if not any(a.kind == "update" and (a.data["key"], a.data["id"]) == name for a in acts):
            raise Broken("G5", f"update {name} was sent by nobody whose transaction has committed")
        self.updates[name] = ["mail"]
        self.tested["G5"] += 1

    def _judge_unasked(self, went: dict[int, Mail], acts: list[Act]) -> None:
        """An update that is gone was taken, rejected, or put aside with the end of its chain."""
        missing = {
            i: m
            for i, m in went.items()
            if m.kind == "u" and self.updates[self._key_of(m.chain), m.payload] == ["mail"]
        }
        aside = self.mirror.aside({m.chain for m in missing.values()}) if missing else {}
        for i, m in missing.items():
            name = self._key_of(m.chain), m.payload
            if any((m.payload, "rejected") in a.data.get("words", ()) for a in acts):
                self.updates[name] = ["rejected"]
            elif i not in aside:
                raise Broken("G31", f"update {name} is gone and nobody took it")
            elif self.runs[self.newest[m.chain]].outcome is None:
                raise Broken("G31", f"update {name} was put aside while its chain goes on")
            else:
                self.updates[name] = ["aside"]

    # ---------------------------------------------------------------- what holds at all times

    def _judge_invariants(self, runs: set[int]) -> None:
        for run_id in runs:
            place = self.place.get(run_id)
            is_parked = place is not None and place[0] == "p"
            if is_parked != bool(self.waits[run_id] or self.timers[run_id]):
                raise Broken(
                    "G13",
                    f"run {run_id} is at {place} and waits for {self.waits[run_id]} and "
                    f"{self.timers[run_id]}",
                )

    def _judge_nudges(self, chains: set[int]) -> None:
        """Judge that chains are nudged which could go on, were asked something, or have ended with
        mail left.
        """
        waiting = defaultdict(list)
        for m in self.mail.values():
            if m.chain in chains:
                waiting[m.chain].append(m)
        for chain, mails in waiting.items():
            if self.nudges[chain] > 0:
                continue
            run = self.runs[self.newest[chain]]
            place = self.place.get(run.run_id)
            if run.outcome is not None:
                raise Broken("G31", f"chain {chain} has ended, has mail and no nudge")
            if place is not None and place[0] == "p":
                for m in mails:
                    if m.kind in "xprt" or any(self._wakes(m, w) for w in self.waits[run.run_id]):
                        raise Broken(
                            "G31", f"run {run.run_id} is parked, has the mail {m} and no nudge"
                        )
            self.tested["G13"] += 1

    @staticmethod
    def _wakes(m: Mail, wait: Line) -> bool:
        if m.kind == "c":
            return (
                wait[3] == "c"
                and m.run == int(wait[1])
                and str(m.call) in wait[5].strip("{}").split(",")
            )
        if m.kind == "u":
            return wait[3] == "u"
        return m.kind == "s" and wait[3] == "s" and wait[4] == m.name

    # ---------------------------------------------------------------- answers

    def _judge_answers(self, acts: list[Act]) -> None:
        """Judge that a commit's answer on each of its runs is true."""
        for act in acts:
            if act.kind == "commit":
                for run_id, token in act.data["leases"]:
                    self._judge_verdict(act, run_id, token, act.data["verdicts"].get(run_id, "ok"))

    def _judge_verdict(self, act: Act, run_id: int, token: int, verdict: str) -> None:
        run = self.runs[run_id]
        first, count = act.data["units"][run_id]
        there = [t for t in run.tokens[first : first + count] if t == token]
        place = self.place.get(run_id)
        holds = place is not None and place[0] == "l" and int(place[2]) == token
        self.tested["G3"] += verdict == "already"
        self.tested["G7"] += verdict == "lost"
        if verdict in ("ok", "already"):
            if len(there) != count:
                raise Broken(
                    "G3",
                    f"run {run_id} was told {verdict!r}; of its {count} units {len(there)} are "
                    "there",
                )
        elif verdict == "lost" and there:
            raise Broken("G3", f"run {run_id} was told 'lost' and has {len(there)} of its units")
        elif verdict == "lost" and holds and run.journal.seq == first:
            raise Broken("G3", f"run {run_id} was told 'lost' and is held under its token")


def _meant(acts: list[Act]) -> set[int]:
    """Runs that these statements named as ones to write for."""
    return {run for a in acts if a.kind in ("commit", "fence") for run, _ in a.data["leases"]}
