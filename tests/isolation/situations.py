"""Situations in which calls meet: the table from which the specs are written, and the reasons for
omissions.

A situation is a place in which a run may be, and two calls that find it there. Each call is a
session of two or three steps - it acts, and later it commits - and its spec has every order of the
steps of both. A call that is stopped at a gate has a step in between: its locks are taken, and it
has yet to look. Only orders are left out in which a session that waits for the other's commit would
have to go on before it, and those in which nothing happens between the snapshot of a caller and its
call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

# ---------------------------------------------------------------- the verbs

REPEATABLE, SERIALIZABLE = "repeatable read", "serializable"


@dataclass(frozen=True)
class Verb:
    """A call of the API, as `world.sql` plays it."""

    name: str
    says: str
    """Words on its action, to be read after "meets"."""
    of: str = ""
    """The verb of which this is a variant."""
    isolation: str = ""
    """Isolation level of a caller's transaction whose snapshot is older than what it meets."""
    begins: str = "begin"
    """Action of a transactional step before its fence."""
    clock: int = 1
    """At which reading of the clock it has its locks and has yet to look."""


VERBS = {
    verb.name: verb
    for verb in (
        Verb("claim", "a claim by another worker"),
        Verb("flush", "a flush of its holder"),
        Verb("park", "its holder parking it until the signal `go` comes"),
        Verb("complete", "its end"),
        Verb("continue", "its continuing as a new generation"),
        Verb("hold", "its holder giving it up as stuck"),
        Verb("child", "its holder starting a child"),
        Verb("step", "a transactional step, from begin over the fence to the commit"),
        Verb("step_rr", "a transactional step at REPEATABLE READ", isolation=REPEATABLE, of="step"),
        Verb("release", "its holder handing it back"),
        Verb("reap", "its worker being declared dead"),
        Verb("wake", "a wake of its chain"),
        Verb("poll", "the sweep of any worker: nudges, due timers, deadlines", clock=2),
        Verb("signal", "a signal"),
        Verb("signal_rr", "a signal from REPEATABLE READ", isolation=REPEATABLE, of="signal"),
        Verb("signal_ser", "a signal from SERIALIZABLE", isolation=SERIALIZABLE, of="signal"),
        Verb("deliver", "a signal whose sender makes the run ready if it can"),
        Verb("deliver_rr", "the same from REPEATABLE READ, which only posts it",
            isolation=REPEATABLE, of="deliver"),
        Verb("cancel", "a cancel"),
        Verb("cancel_rr", "a cancel from REPEATABLE READ", isolation=REPEATABLE, of="cancel"),
        Verb("force", "a cancel by force"),
        Verb("pause", "a pause"),
        Verb("resume", "a resume"),
        Verb("retry", "a retry"),
        Verb("await", "its holder parking it until a child ends", of="park"),
        Verb("give_up", "its holder giving up a child that it waited for", of="flush"),
        Verb("takeover", "its worker being declared dead, and a claim by another", of="claim"),
        Verb("redact", "a redaction of its first value"),
        Verb("drop", "the removal of history"),
        Verb("seal", "a round of the sealer"),
        Verb("fire", "a look at the schedules"),
        Verb("trigger", "a trigger of the slot"),
        Verb("backfill", "a backfill of the slot"),
        Verb("start_slot", "a start with the key of the slot"),
        Verb("pause_schedule", "a pause of the schedule"),
        Verb("patch", "a worker with other code that lets stuck runs try again"),
        # A look is a park of a run that may have news, and an answer is mail as a signal is.
        Verb("peek", "its holder looking whether its gate has a verdict", of="park"),
        Verb("expire", "its holder looking at a gate whose time is over", of="park"),
        Verb("waive", "its holder giving up the gate", of="flush"),
        Verb("approve", "an answer to its gate", clock=2, of="signal"),
        Verb("approve_rr", "an answer from REPEATABLE READ", isolation=REPEATABLE, of="signal"),
        Verb("approve_ser", "an answer from SERIALIZABLE", isolation=SERIALIZABLE, of="signal"),
        Verb("reject", "another answer", clock=2, of="signal"),
        Verb("start", "a start with its key"),
        Verb("start_rr", "a start with its key from REPEATABLE READ", isolation=REPEATABLE,
            of="start"),
        Verb("start_ser", "a start with its key from SERIALIZABLE", isolation=SERIALIZABLE,
            of="start"),
        Verb("start_later", "a start with its key and a time to begin", of="start"),
        Verb("put_off", "a start with its key of which the last counts", of="start"),
        Verb("collect", "a start with its key that brings an item", of="start"),
        Verb("start_many", "a batch of starts with its key among them", of="start"),
        Verb("start_child", "a start with the key of the child", of="start"),
        Verb("discharge", "word that what the run owes was done", of="signal"),
        Verb("discharge_rr", "the same word from REPEATABLE READ", isolation=REPEATABLE,
            of="signal"),
        Verb("keep", "its holder's code closing what it owes", of="flush"),
        Verb("hand_on", "its continuing as a new generation that owes it then", of="continue"),
        Verb("wait_owing", "its holder parking it, since it owes", of="park"),
        Verb("fail", "its failing while it owes", of="complete"),
        Verb("restart", "a restart", of="retry"),
        Verb("ask", "a run that asks for a lock and parks until it has it", of="park"),
        Verb("give", "its holder giving a lock back", of="flush"),
        Verb("take_lock", "plain code that takes a lock, or stands in its queue"),
        Verb("free_lock", "plain code that gives a lock back"),
        Verb("break_lock", "an operator who takes a lock away"),
        Verb("sweep_locks", "a sweep for locks"),
        Verb("publish", "a writer that publishes"),
        Verb("publish_rr", "a writer that publishes from REPEATABLE READ", isolation=REPEATABLE,
            of="publish"),
        Verb("bring", "a relay that brings what there is, in one transaction"),
        Verb("take_over", "another worker taking the relay", of="bring"),
        Verb("settle_events", "a worker saying what became of what it took", of="bring"),
        Verb("replay_events", "an operator having the relay go back"),
        Verb("drop_events", "the removal of events"),
        Verb("await_event", "its holder parking it until an event comes", of="park"),
        Verb("forget_event", "its holder giving up the wait", of="flush"),
        Verb("match", "a sweep that compares events with what runs wait for", of="poll"),
        Verb("flush_both", "a batch with flushes of both runs", of="flush"),
        Verb("release_both", "both runs being handed back, in the wrong order", of="release"),
        Verb("wake_both", "a wake of both chains", of="wake"),
        Verb("children", "a flush with two children of workflows that are new", clock=2,
            of="child"),
        Verb("children_back", "a flush with the same children in the other order", clock=2,
            of="child"),
        Verb("batch", "a batch with a flush of k and a child of l, of which k was taken over",
            of="flush"),
        Verb("starting_step",
            "a transactional step of the new holder of k that starts a run with the child's key",
            begins="begin with a start", of="step"),
        Verb("admit", "a flush of its holder that asks its pool for a call", of="flush"),
        Verb("charge", "a flush of its holder with a call that cost more than it had reserved",
            of="flush"),
        Verb("settle", "its end, with what it has reserved", of="complete"),
        Verb("costly_step", "a transactional step that cost less than it had reserved", of="step"),
        Verb("grant", "a grant to the pool above"),
        Verb("grant_rr", "a grant to the pool above from REPEATABLE READ", isolation=REPEATABLE,
            of="grant"),
        Verb("revoke", "the pool above being revoked", of="grant"),
        Verb("lower", "a lower limit of the pool above", of="grant"),
        # An update is mail as a signal is; so is the question for its answer, which may be the last
        # word on it.
        Verb("update", "an update", of="signal"),
        Verb("update_rr", "an update from REPEATABLE READ", isolation=REPEATABLE, of="signal"),
        Verb("update_ser", "an update from SERIALIZABLE", isolation=SERIALIZABLE, of="signal"),
        Verb("take_update", "its holder taking the update and answering it", of="flush"),
        Verb("reject_update", "its holder rejecting the update", of="flush"),
        Verb("ask_reply", "a question for the answer to the update", of="signal"),
        Verb("redact_update", "a redaction of the update", of="redact"),
    )
}  # fmt: skip

HOLDERS = ("flush", "park", "complete", "continue", "hold", "child", "step", "step_rr", "release")
LOOKERS = ("wake", "poll")
SENDERS = (
    "signal", "signal_rr", "signal_ser", "cancel", "cancel_rr", "force", "pause", "resume", "retry",
)  # fmt: skip
PLAIN = ("signal", "cancel", "force", "pause", "resume", "retry")
STARTS = ("start", "start_rr", "start_ser", "start_later", "start_many")
ANSWERS = ("approve", "approve_rr", "approve_ser", "reject")

DRAWS = ("admit", "charge", "settle", "costly_step")
ON_POOLS = ("grant", "grant_rr", "revoke", "lower")

OF_SCHEDULES = ("trigger", "backfill", "pause_schedule", "start_slot")

# Who waits for whose commit; nobody else waits (tests/sql/test_sql_locks.py).
LOCKERS = {
    "flush", "park", "complete", "continue", "hold", "child", "step", "step_rr", "release", "reap", "wake", "poll",
    "await", "ask", "give", "give_up", "takeover", "flush_both", "release_both", "wake_both", "children", "children_back",
}  # fmt: skip
WAITS: dict[str, set[str]] = {
    # A fence, since the application's transaction cannot be tried again; and who hands runs back,
    # in the order of run_id.
    **dict.fromkeys(("step", "step_rr", "release", "release_both"), LOCKERS),
    "reap": {"reap"},
    # A batch that was sent again because its answer was lost waits for itself.
    "flush": {"flush"},
    # Whoever names a key must know whether it is taken; and new lanes are made once.
    **dict.fromkeys(STARTS, set(STARTS)),
    # A run is changed under the lock of its place.
    **dict.fromkeys(("put_off", "collect"), {"put_off", "collect", "claim", *LOOKERS}),
    # The answers to a gate have one order; and whoever lets it expire keeps answers off.
    **dict.fromkeys(ANSWERS, {*ANSWERS, "expire"}),
    "start_child": {"child"},
    "child": {"child", "start_child"},
    "children": {"children", "children_back"},
    "children_back": {"children", "children_back"},
    "batch": {"starting_step"},
    # The same id is one update; and what was said of it is said once.
    **dict.fromkeys(("update", "update_rr", "update_ser"), {"update", "update_rr", "update_ser"}),
    "ask_reply": {"ask_reply", "drop", "redact_update"},
    "redact_update": {"restart", "redact_update", "drop", "seal", "ask_reply"},
    # A sweep has the rows of what is due; into the journal of a run that has ended one after the
    # other writes.
    **dict.fromkeys(("keep", "hand_on", "fail"), {"poll"}),
    **dict.fromkeys(
        ("discharge", "discharge_rr", "restart"),
        {
            "discharge", "discharge_rr", "restart", "poll", "redact", "drop", "redact_update",
            "ask_reply",
        },
    ),
    # Pools are locked, whoever draws on them or sets them; so is that of a run that ends by force.
    **dict.fromkeys((*DRAWS, *ON_POOLS), {*DRAWS, *ON_POOLS, "wake"}),
    "wake": {*DRAWS, *ON_POOLS},
    # The cursor of a relay is moved by one after the other; who begins skips it.
    **dict.fromkeys(
        ("settle_events", "replay_events"), {"bring", "take_over", "settle_events", "replay_events"}
    ),
    "drop_events": {"drop_events"},
    # Who gives up a wait that is just being served.
    "forget_event": {"match"},
    # Who takes a lock from whoever holds it.
    "break_lock": {"break_lock", "free_lock", "give", "complete", "continue"},
    "free_lock": {"break_lock", "free_lock"},
    # Who says something of a schedule has its row; a look passes over it, and waits only for whoever
    # has taken the key of the slot ahead.
    "fire": {"start_slot"},
    **dict.fromkeys(("trigger", "backfill"), {*OF_SCHEDULES, "fire"}),
    "pause_schedule": {"trigger", "backfill", "fire", "pause_schedule"},
    "start_slot": {"fire", "trigger", "backfill", "start_slot"},
    # One after the other goes on with a chain that has ended, and nothing is removed meanwhile. The
    # sealer waits for nobody.
    "redact": {"restart", "redact", "drop", "seal"},
    "drop": {"restart", "redact", "drop", "seal", "redact_update", "ask_reply"},
}  # fmt: skip


TOUCH_BOTH = {
    "child",
    "children",
    "children_back",
    "start_child",
    "flush_both",
    "release_both",
    "wake_both",
    "poll",
    "reap",
    *DRAWS,
    *ON_POOLS,
}
"""Calls that may meet another run's."""
LATE = 100
"""The token of a former holder: it locks nothing that is another's, and what it wants to record is
refused before it could wait.
"""


# ---------------------------------------------------------------- sessions and their orders


@dataclass(frozen=True)
class Actor:
    """One session. ``token`` makes it somebody other than the run's holder."""

    verb: Verb
    label: str = ""
    run: str = "k"
    token: int | None = None
    gate: int | None = None
    alone: bool = False
    """Commits at once."""

    @property
    def name(self) -> str:
        return self.label or self.verb.name.replace(
            "step", "fence"
        )  # which is a word of the tester's

    @property
    def is_step(self) -> bool:
        return "step" in self.verb.name

    def play(self, verb: str) -> str:
        values = [f"'{verb}'"]
        if self.run != "k" or self.token:
            values.append(f"'{self.run}'")
        if self.token:
            values.append(str(self.token))
        return f"select scene.play({', '.join(values)});"

    def steps(self) -> list[tuple[str, str]]:
        """(name, SQL) in order."""
        begin = f"begin isolation level {self.verb.isolation};" if self.verb.isolation else "begin;"
        if self.alone:
            return [(self.name, self.play(self.verb.name))]
        if self.is_step:
            return [
                (f"{self.name}_b", f"{begin} {self.play('begin')}"),
                (self.name, self.play("fence")),
                (f"{self.name}_c", "commit;"),
            ]
        verb = self.verb.name
        if self.verb.isolation:
            return [
                (f"{self.name}_b", f"{begin} call scene.snapshot();"),
                (self.name, self.play(verb)),
                (f"{self.name}_c", "commit;"),
            ]
        if self.gate:
            clock = f" set local scene.clock = {self.verb.clock};" if self.verb.clock > 1 else ""
            act = f"begin; set local scene.gate = {self.gate};{clock} {self.play(verb)}"
            return [
                (self.name, act),
                (f"open_{self.gate}", f"call scene.open({self.gate});"),
                (f"{self.name}_c", "commit;"),
            ]
        return [(self.name, f"begin; {self.play(verb)}"), (f"{self.name}_c", "commit;")]


def orders(*actors: Actor) -> Iterator[list[str]]:
    """Every order of the steps of these actors that can be played."""
    parts = [[name for name, _ in actor.steps()] for actor in actors]
    for order in interleave([tuple(part) for part in parts]):
        if all(can_be_played(order, a, b) for a, b in permutations(actors, 2)) and all(
            is_new(order, actor) for actor in actors
        ):
            yield list(order)


def interleave(parts: list[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    if not any(parts):
        yield ()
    for n, part in enumerate(parts):
        if part:
            for rest in interleave([*parts[:n], part[1:], *parts[n + 1 :]]):
                yield (part[0], *rest)


def is_new(order: tuple[str, ...], actor: Actor) -> bool:
    """Return True if something happens between the snapshot and the call: else it is as from READ
    COMMITTED.
    """
    if not actor.verb.isolation or actor.is_step:
        return True
    return order.index(actor.name) > order.index(f"{actor.name}_b") + 1


def can_be_played(order: tuple[str, ...], waiter: Actor, other: Actor) -> bool:
    """Return True if nobody must commit while it waits for the other's commit."""
    if other.alone or other.verb.name not in WAITS.get(waiter.verb.name, ()):
        return True
    names = {waiter.verb.name, other.verb.name}
    if other.token == LATE or (waiter.verb.name == "flush" and waiter.token == LATE):
        return True
    if other.run != waiter.run and not names & TOUCH_BOTH:
        return True
    at = {name: n for n, name in enumerate(order)}
    met = at[other.name] < at[waiter.name] < at[f"{other.name}_c"]
    return not met or at[f"{other.name}_c"] < at[f"{waiter.name}_c"]


# ---------------------------------------------------------------- the situations


@dataclass(frozen=True)
class Spec:
    """A file: one call in one place, and everything that it meets there."""

    name: str
    place: str
    intro: str
    meetings: tuple[tuple[Actor, ...], ...]

    def permutations(self) -> list[list[str]]:
        found = []
        for actors in self.meetings:
            twins = (
                len(actors) == 2
                and actors[0].verb == actors[1].verb
                and actors[0].token == actors[1].token
                and actors[0].run == actors[1].run
            )
            first = actors[0].steps()[0][0]
            found += [order for order in orders(*actors) if not twins or order[0] == first]
        # Who comes after a takeover is the new holder; the old one does one thing at a time.
        return [
            order
            for order in found
            if "takeover" not in order
            or order.index("takeover") < order.index(self.meetings[0][-1].name)
        ]


PLACES = {
    "empty": "no run has the key yet",
    "ready": "the run is ready",
    "asked": "the run is ready, and somebody has asked for a pause",
    "leased": "a worker holds the run; a message that it does not wait for is in its mailbox, with "
    "its nudge",
    "overdue": "the run is ready, its deadline has passed, and somebody has cancelled it by force",
    "late": "a worker holds the run, and its deadline has passed",
    "taken": "the run was taken from the worker with token 100, and is held under token 101",
    "parked": "the run waits for the signal `go`",
    "mailed": "the run waits for the signal `go`, which has been sent",
    "due": "the run waits for the signal `go`, and its time-out has passed",
    "expired": "the run waits for the signal `go`, and its deadline has passed",
    "watched": "a worker holds the run, and the journal is sealed",
    "ended": "the run has ended, and is to be sealed",
    "sealed": "the run has ended and is sealed",
    "scheduled": "a slot of a schedule is due",
    "planned": "the run waits for its time to start",
    "begins": "the run waits for its time to start, which has come",
    "collects": "the run collects items: it has one of three",
    "collected": "the run collects items: it has two of three, and its time has come",
    "lined": "the run stands in the line of its queue",
    "stopped": "the run stands in the line of its queue, and somebody has asked for a pause",
    "asking": "the run is parked at a gate",
    "at_gate": "a worker holds the run, which has asked at a gate",
    "out_of_time": "a worker holds the run, which has asked at a gate whose time is over",
    "paused": "the run is paused",
    "resumed": "the run is paused, and somebody has asked to resume it",
    "stuck": "the run is stuck",
    "retried": "the run is stuck, and somebody has asked to retry it",
    "family": "run k and its child l are both held, by two workers",
    "two": "one worker holds the runs k and l",
    "owing": "a worker holds the run, which owes a refund",
    "breached": "a worker holds the run, which owes a refund that is due",
    "outlived": "the run has completed, and what outlives it is due",
    "spending": "runs k and l are both held, each has reserved of a pool of its own, and both pools "
    "draw on a third",
    "forfeit": "the same is so, but k is stuck, and somebody has cancelled it by force",
    "free": "two workers hold the runs k and l, and nobody has the lock",
    "locked": "two workers hold the runs k and l, and k has the lock",
    "queued": "a worker holds run k, which has the lock, and run l is parked until it has it",
    "lent": "two workers hold the runs k and l, and plain code has the lock",
    "serving": "the run is parked until an update comes",
    "updated": "a worker holds the run, and has been shown an update in its mailbox",
    "unheard": "the run has ended, and an update that nobody took is in its mailbox",
    "published": "a relay has brought the first of two events",
    "relayed": "a worker has taken an event for a relay, and its lease is over",
    "listening": "a worker holds the run, and an event has been published",
    "expecting": "the run waits for an event",
    "attentive": "a worker holds the run, which waits for an event",
    "split": "one worker holds the runs k and l, but k was handed back and is held by another",
}

MUST_HOLD = """\
# After each order what was busy is tried again, leases of nobody are taken, and two polls go by. Then each
# message is in exactly one place, what was acknowledged is recorded once and what was refused is not, nobody
# waits for what is there, what people asked for has happened or waits for the holder, and check() is silent.
"""


def meet(
    place: str, first: str, partners: tuple[str, ...], *, gated: bool = False, suffix: str = ""
) -> Spec:
    a = VERBS[first]
    meetings = []
    for name in partners:
        b = VERBS[name]
        label = f"{Actor(b).name}_2" if name == first else ""
        meetings.append(
            (Actor(a, gate=1 if gated else None), Actor(b, label, gate=2 if gated else None))
        )
    intro = f"# Here {PLACES[place]}. {a.says[0].upper()}{a.says[1:]} meets"
    return Spec(
        f"{place}-{first}{suffix}" + ("-gated" if gated else ""), place, intro, tuple(meetings)
    )


def after(first: str, *groups: tuple[str, ...]) -> tuple[str, ...]:
    """Return the verbs from this one on: each pair has one file."""
    names = [name for group in groups for name in group]
    return tuple(names[names.index(first) :])


def late(first: str) -> Spec:
    """The former holder against everything that the new one does."""
    a = VERBS[first]
    meetings = tuple(
        (Actor(a, f"late_{first}", token=LATE), Actor(VERBS[name])) for name in HOLDERS
    )
    intro = f"# Here {PLACES['taken']}. Of the former holder, {a.says} meets, of the new one"
    return Spec(f"taken-{first}", "taken", intro, meetings)


def all_specs() -> list[Spec]:
    ready = ("claim", *LOOKERS)
    specs = [meet("empty", name, after(name, STARTS)) for name in STARTS]
    specs += [
        meet("empty", name, ("claim", *LOOKERS, *PLAIN, "deliver"), suffix="-others")
        for name in ("start", "start_later")
    ]
    specs += [meet("ready", name, after(name, ready, PLAIN)) for name in ready]
    specs += [
        meet("leased", name, (name, "reap", *LOOKERS, *SENDERS))
        for name in HOLDERS
        if name != "step_rr"
    ]
    specs += [meet("leased", "step_rr", ("step_rr", "reap", *LOOKERS, "signal", "cancel"))]
    specs += [
        meet("leased", name, after(name, ("reap", *LOOKERS), SENDERS))
        for name in ("reap", *LOOKERS)
    ]
    specs += [meet("parked", name, after(name, (*LOOKERS, *SENDERS))) for name in LOOKERS]
    # Senders meet each other anywhere: they read the key and insert.
    specs += [
        meet("parked", name, after(name, (*PLAIN, "signal_rr", "signal_ser")))
        for name in (*PLAIN, "signal_rr", "signal_ser")
    ]
    specs += [meet("mailed", "claim", (*LOOKERS, "deliver"))]
    specs += [meet("mailed", name, after(name, LOOKERS, PLAIN)) for name in LOOKERS]
    specs += [meet("due", "claim", LOOKERS)]
    specs += [meet("due", name, after(name, LOOKERS, PLAIN)) for name in LOOKERS]
    specs += [meet("planned", "claim", LOOKERS)]
    specs += [meet("planned", name, after(name, LOOKERS, PLAIN)) for name in LOOKERS]
    specs += [
        meet("planned", "put_off", ("put_off", "start", "signal", *LOOKERS)),
        meet("begins", "put_off", ("put_off", *LOOKERS)),
        meet("ready", "put_off", ("put_off", "start", "signal", "claim", *LOOKERS)),
        meet("lined", "put_off", ("put_off", "claim", *LOOKERS)),
        meet("collects", "collect", ("collect", "start", "signal", *LOOKERS)),
        meet("collected", "collect", ("collect", "claim", *LOOKERS)),
        meet("stopped", "claim", LOOKERS),
        meet("stopped", "wake", LOOKERS),
    ]
    specs += [meet("paused", name, after(name, LOOKERS, PLAIN)) for name in LOOKERS]
    specs += [meet("resumed", "claim", LOOKERS)]
    specs += [meet("resumed", name, after(name, LOOKERS, PLAIN)) for name in LOOKERS]
    specs += [
        meet("stuck", name, after(name, ("patch", *LOOKERS), PLAIN)) for name in ("patch", *LOOKERS)
    ]
    specs += [
        meet("retried", name, after(name, ("claim", "patch", *LOOKERS)))
        for name in ("claim", "patch", *LOOKERS)
    ]
    specs += [late(name) for name in ("flush", "park", "complete", "release")]
    gated_leased = ("flush", "park", "complete", "continue", "hold", "release", "reap")
    specs += [meet("leased", name, LOOKERS, gated=True) for name in gated_leased]
    specs += [
        meet("asked", name, after(name, ("claim", *LOOKERS)), gated=True)
        for name in ("claim", *LOOKERS)
    ]
    specs += [meet("mailed", name, after(name, LOOKERS), gated=True) for name in LOOKERS]
    specs += [meet("due", name, after(name, LOOKERS), gated=True) for name in LOOKERS]
    held = tuple(name for name in HOLDERS if name != "step_rr")
    specs += [
        meet("leased", "deliver", (*held, "reap", *LOOKERS)),
        meet("planned", "deliver", LOOKERS),
        meet("expired", "deliver", LOOKERS),
    ]
    specs += [meet(place, "deliver", ("deliver", *LOOKERS, *PLAIN)) for place in ("mailed", "due")]
    specs += [meet("parked", "deliver", ("deliver", "deliver_rr", *LOOKERS, *SENDERS))]
    specs += [
        meet("stuck", "deliver", ("patch", *LOOKERS)),
        meet("parked", "deliver", ("deliver", *LOOKERS), gated=True),
        meet("leased", "park", ("deliver",), gated=True, suffix="-deliver"),
    ]
    closing = ("keep", "hand_on", "wait_owing", "fail")
    specs += [
        meet("owing", "discharge", ("discharge", "discharge_rr", *closing, *LOOKERS, "force")),
        meet("owing", "discharge", ("hand_on", "wait_owing", "fail"), gated=True),
        meet("breached", "poll", ("poll", "wake", "discharge", *closing, "force")),
        meet("outlived", "discharge", ("discharge", "discharge_rr", "restart", *LOOKERS)),
        meet("outlived", "poll", ("poll", "restart")),
    ]
    specs += [
        meet("asking", name, after(name, ANSWERS, (*LOOKERS, "force", "cancel")))
        for name in ("approve", "approve_rr", "approve_ser")
    ]
    specs += [
        meet("at_gate", name, ANSWERS)
        for name in ("peek", "waive", "complete", "continue", "release", "reap")
    ]
    specs += [
        meet("out_of_time", "expire", ANSWERS),
        meet("at_gate", "peek", ("approve", "reject"), gated=True),
        meet("asking", "approve", LOOKERS, gated=True),
    ]
    ended = ("seal", "redact", "restart", "drop")
    specs += [
        meet("watched", "seal", ("flush", "complete", "continue", "reap", "start_child")),
        meet("watched", "redact", ("flush", "park", "complete", "continue", "step", "wake")),
    ]
    senders = ("signal", "deliver", "cancel", "force", "pause", "resume", "start", *LOOKERS)
    specs += [
        meet("ended", name, (*after(name, ended), *(senders if name != "restart" else ())))
        for name in ended
    ]
    specs += [
        meet("ended", "seal", ("redact", "restart"), gated=True),
        meet("sealed", "seal", ended[1:]),
    ]
    specs += [meet("scheduled", "fire", ("fire", *OF_SCHEDULES))]
    specs += [
        meet("scheduled", name, after(name, OF_SCHEDULES))
        for name in ("trigger", "backfill", "start_slot")
    ]
    return [*specs, *family(), *several(), *spending(), *three(), *locks(), *updates(), *events()]


def spec(name: str, place: str, says: str, first: Actor, *others: Actor) -> Spec:
    return Spec(
        f"{place}-{name}",
        place,
        f"# Here {PLACES[place]}. {says} meets",
        tuple((first, other) for other in others),
    )


def family() -> list[Spec]:
    """A parent and its child."""
    child = Actor(VERBS["complete"], "child_complete", "l")
    parent = Actor(VERBS["complete"], "parent_complete")
    asks = [
        Actor(VERBS[name])
        for name in (
            "await",
            "complete",
            "continue",
            "hold",
            "release",
            "give_up",
            "step",
            "reap",
            *LOOKERS,
            *PLAIN,
        )
    ]
    below = [
        Actor(VERBS[name], f"child_{name}".replace("step", "fence"), "l")
        for name in (
            "flush", "park", "continue", "hold", "release", "step", "reap", "wake", "cancel",
        )
    ]  # fmt: skip
    waits = Actor(VERBS["await"])
    gated_child, gated_wait = (
        Actor(VERBS["complete"], "child_complete", "l", gate=1),
        Actor(VERBS["await"], gate=2),
    )
    return [
        spec("child-completes", "family", "The end of the child", child, *asks),
        spec("parent-completes", "family", "The end of the parent", parent, *below),
        spec("await", "family", "A parent that parks until its child ends", waits,
            *(Actor(VERBS[name]) for name in ("await", "reap", *LOOKERS, *PLAIN))),
        spec("child-completes-gated", "family", "The end of the child", gated_child, gated_wait,
            Actor(VERBS["continue"], gate=2), Actor(VERBS["complete"], gate=2)),
    ]  # fmt: skip


def several() -> list[Spec]:
    """Calls that touch more than one run, or a deadline, or a worker."""

    def actors(names: tuple[str, ...], **options: int) -> list[Actor]:
        return [Actor(VERBS[name], **options) for name in names]

    both, back = Actor(VERBS["flush_both"]), Actor(VERBS["release_both"])
    twice = [Actor(VERBS[verb], f"{verb}_2") for verb in ("flush_both", "release_both")]
    steps = [Actor(VERBS["step"]), Actor(VERBS["step"], "l_fence", "l")]
    others = actors(("reap", "wake_both", "poll"))
    child, poll, claim = Actor(VERBS["child"]), Actor(VERBS["poll"]), Actor(VERBS["claim"], gate=1)
    return [
        spec("flush_both", "two", "A batch with both runs", both, twice[0], back, *others),
        spec("release_both", "two", "Handing both back in the wrong order", back, twice[1], *steps,
            *others),
        spec("child", "two", "A child of k", child, Actor(VERBS["child"], "child_of_l", "l"),
            Actor(VERBS["start_child"])),
        spec("children-gated", "two", "A flush with two children of workflows that are new",
            Actor(VERBS["children"], gate=1), Actor(VERBS["children_back"], run="l", gate=2)),
        spec("batch", "split",
            "A batch with a flush of k and a child of l, of which k was taken over,",
            Actor(VERBS["batch"], token=LATE), Actor(VERBS["starting_step"])),
        spec("poll", "late", "A sweep", poll,
            *actors(("flush", "complete", "continue", "hold", "park", "release", "step", "wake",
                *PLAIN))),
        spec("poll", "expired", "A sweep", poll, Actor(VERBS["poll"], "poll_2"),
            *actors(("wake", "claim", *PLAIN))),
        spec("poll-gated", "overdue", "A sweep", Actor(VERBS["poll"], gate=1),
            Actor(VERBS["wake"], gate=2), Actor(VERBS["poll"], "poll_2", gate=2),
            Actor(VERBS["claim"], gate=2)),
        spec("claim-gated", "ready", "A claim", claim, Actor(VERBS["reap"], gate=2)),
    ]  # fmt: skip


def spending() -> list[Spec]:
    """Draws on pools that meet further up, and what people say of these."""

    def of_l(names: tuple[str, ...]) -> list[Actor]:
        return [Actor(VERBS[name], f"l_{name}".replace("step", "fence"), "l") for name in names]

    people = [Actor(VERBS[name]) for name in ON_POOLS]
    specs = [
        spec(name, "spending", f"Of k, {VERBS[name].says}", Actor(VERBS[name]), *others, *people)
        for n, name in enumerate(DRAWS)
        if (others := of_l(DRAWS[n:]))
    ]
    for n, name in enumerate(ON_POOLS):
        others = [
            Actor(VERBS[other], f"{other}_2" if other == name else "") for other in ON_POOLS[n:]
        ]
        says = VERBS[name].says
        specs.append(
            spec(name, "spending", says[0].upper() + says[1:], Actor(VERBS[name]), *others)
        )
    wake = Actor(VERBS["wake"])
    return [*specs, spec("wake", "forfeit", "A wake of k", wake, *of_l(DRAWS), *people)]


def three() -> list[Spec]:
    """Three at once: what is sent, who parks or holds, and who looks."""

    def trio(name: str, place: str, *actors: Actor) -> Spec:
        return Spec(
            f"{place}-{name}",
            place,
            f"# Here {PLACES[place]}. {actors[0].verb.says[0].upper()}{actors[0].verb.says[1:]}, "
            f"{actors[1].verb.says} and",
            (actors,),
        )

    park, wake = Actor(VERBS["park"], gate=1), Actor(VERBS["wake"], gate=2)
    old, new = Actor(VERBS["step"], token=101), Actor(VERBS["takeover"], alone=True)
    return [
        trio("signal-park-wake-gated", "leased", Actor(VERBS["signal"], alone=True), park, wake),
        trio("cancel-hold-wake-gated", "leased", Actor(VERBS["cancel"], alone=True),
            Actor(VERBS["hold"]), wake),
        trio("pause-park-poll-gated", "leased", Actor(VERBS["pause"], alone=True), park,
            Actor(VERBS["poll"])),
        trio("child-await-wake-gated", "family",
            Actor(VERBS["complete"], "child_complete", "l", alone=True),
            Actor(VERBS["await"], gate=1), wake),
        trio("step-takeover-complete", "leased", old, new, Actor(VERBS["complete"], token=102)),
        trio("step-takeover-flush", "leased", old, new, Actor(VERBS["flush"], token=102)),
    ]  # fmt: skip


def locks() -> list[Spec]:
    """A lock, and whoever asks for it, gives it back, takes it away or looks."""

    def actors(*names: str, gate: int | None = None) -> list[Actor]:
        return [Actor(VERBS[name], gate=gate) for name in names]

    looks = ("break_lock", "sweep_locks", "poll")
    asks_too, late = Actor(VERBS["ask"], "l_ask", "l"), Actor(VERBS["ask"], "l_ask", "l", gate=2)
    others = [asks_too, *actors("take_lock", *looks)]
    ask, give, end, take, free = actors("ask", "give", "complete", "take_lock", "free_lock")
    gives = Actor(VERBS["give"], gate=1)
    twice, free_2, break_2, sweep_2 = (
        Actor(VERBS[name], f"{name}_2")
        for name in ("take_lock", "free_lock", "break_lock", "sweep_locks")
    )
    moves = actors("continue", "step", "wake")
    break_, sweep = actors("break_lock", "sweep_locks")
    return [
        spec("ask", "free", "A run that asks for the lock", ask, *others),
        spec("take_lock", "free", "Plain code that takes the lock", take, twice, *actors(*looks)),
        spec("give", "locked", "The end of the block", give, *others),
        spec("complete", "locked", "The end of the run", end, *others),
        spec("ask", "locked", "A run that asks for the lock", asks_too, *others[1:]),
        spec("give", "queued", "The end of the block", give, *others[1:], *actors("wake")),
        spec("complete", "queued", "The end of the run", end, *others[1:], *actors("wake")),
        spec("free_lock", "lent", "The end of the block", free, free_2, *others, *actors("wake")),
        spec("take_lock", "locked", "Plain code that takes the lock", take, *moves),
        spec("break_lock", "locked", "The lock being taken away", break_, break_2, *moves),
        spec("break_lock", "queued", "The lock being taken away", break_, sweep, *actors("poll")),
        spec("sweep_locks", "queued", "A sweep for locks", sweep, sweep_2, *actors("poll"), *moves),
        spec("give-gated", "locked", "The end of the block", gives, late,
            *actors("take_lock", "sweep_locks", gate=2)),
    ]  # fmt: skip


def updates() -> list[Spec]:
    """Updates of a running workflow: sent, taken, rejected, and asked for once the run is over."""
    sends = ("update", "update_rr", "update_ser")
    moves = (*LOOKERS, "reap", "force", "cancel", "pause")
    return [
        *(meet("serving", name, after(name, sends, (*LOOKERS, "force"))) for name in sends),
        meet("serving", "update", LOOKERS, gated=True),
        *(
            meet("updated", name, ("update", "ask_reply", *moves))
            for name in ("take_update", "reject_update")
        ),
        *(
            meet("updated", name, ("update", "ask_reply"))
            for name in ("park", "complete", "continue", "hold", "release")
        ),
        meet(
            "unheard",
            "ask_reply",
            ("ask_reply", "update", "restart", "redact_update", "drop", *LOOKERS),
        ),
        meet(
            "unheard",
            "redact_update",
            ("redact_update", "update", "restart", "drop", "seal", *LOOKERS),
        ),
    ]


def events() -> list[Spec]:
    """Events: whoever publishes, brings, goes back, removes, and waits for one."""

    def actors(*names: str) -> list[Actor]:
        return [Actor(VERBS[name]) for name in names]

    def twice(name: str) -> Actor:
        return Actor(VERBS[name], f"{name}_2")

    publish, bring, replay, drop, settle = actors(
        "publish", "bring", "replay_events", "drop_events", "settle_events"
    )
    rest = ("replay_events", "drop_events")
    slow = Actor(VERBS["publish"], "publish_2")
    awaits, match, forget = actors("await_event", "match", "forget_event")
    return [
        spec("publish", "published", "A writer", publish, twice("publish"),
            *actors("publish_rr", "bring", *rest)),
        spec("bring", "published", "A relay", bring, twice("bring"), *actors("publish_rr", *rest)),
        spec("replay_events", "published", "Going back", replay, twice("replay_events"), drop),
        spec("drop_events", "published", "The removal of events", drop, twice("drop_events")),
        Spec("published-publish-publish-bring", "published",
            f"# Here {PLACES['published']}. Two writers, the first of which may be slow, and",
            ((publish, slow, bring),)),
        spec("settle_events", "relayed", "The one who took it", settle, twice("settle_events"),
            *actors("take_over", "publish", *rest)),
        spec("take_over", "relayed", "Another worker", *actors("take_over", "replay_events")),
        spec("await_event", "listening", "A run that waits for an event", awaits,
            *actors("publish", "publish_rr", "match", "drop_events")),
        Spec("listening-publish-await-match", "listening",
            f"# Here {PLACES['listening']}. A writer, a run that waits for an event and",
            ((publish, awaits, match),)),
        spec("match", "expecting", "A sweep", match, twice("match"),
            *actors("publish", "publish_rr", "wake", "force", "drop_events")),
        spec("publish", "expecting", "A writer", publish, slow, *actors("wake")),
        Spec("expecting-publish-publish-match", "expecting",
            f"# Here {PLACES['expecting']}. Two writers, the first of which may be slow, and",
            ((publish, slow, match),)),
        spec("forget_event", "attentive", "The wait being given up", forget, match, publish),
        spec("await_event", "attentive", "The run being parked", awaits, match, publish),
    ]  # fmt: skip


# ---------------------------------------------------------------- what cannot meet

HELD = ("flush", "park", "complete", "continue", "hold", "child", "step", "release")
APART = (
    (("claim",), HELD,
        ("a claim takes a run that is ready, and these need its lease: one transaction moves it, "
            "and only after its commit is there the other place")),
    (HELD, HELD,
        ("a worker has one batch of a run in flight, a step waits for its turn, and of a former "
            "holder everything is refused by the same line (taken-*)")),
    (("patch",), (*HELD, "reap"), "only a stuck run is let go, and nobody holds that"),
    (("start",), (*HELD, "reap", "patch"),
        ("whoever holds a run has seen its start committed: a start with its key only reads then (a "
            "child's key: two-child)")),
    (("grant",),
        ("claim", "park", "continue", "hold", "child", "release", "reap", "poll", "patch", "start",
            "signal", "deliver", "cancel", "force", "pause", "resume", "retry"),
        ("a word on a pool touches only its rows, and these touch none of a pool: they start, "
            "move or tell a run, and what draws is in the flush beside them (spending-*)")),
    (("take_lock", "free_lock", "break_lock", "sweep_locks"),
        ("claim", "hold", "child", "release", "reap", "patch", "start", "signal", "deliver",
            "cancel", "force", "pause", "resume", "retry", "grant"),
        ("these change no row of a lock: a run keeps its locks wherever it is moved, until it "
            "gives them back, goes on as another generation or ends")),
    (("drop",), (*HELD, "claim", "reap", "patch"),
        "history is removed of chains that have ended long ago, and these move a run that has not"),
    (("redact",), ("claim", "hold", "child", "release", "reap", "patch"),
        "these change a run's place, and a redaction its units"),
    (("seal",), ("claim", "park", "hold", "child", "step", "release", "patch"),
        "the sealer reads what is committed, and has met a commit of each kind (watched-seal)"),
    (("seal", "redact", "drop"), ("take_lock", "free_lock", "break_lock", "sweep_locks", "grant"),
        "those touch what has ended or stands in a journal, and these neither"),
    (("fire", *OF_SCHEDULES), tuple(name for name in VERBS if name not in ("fire", *OF_SCHEDULES)),
        ("these touch rows of schedules and keys of slots alone; they start and cancel runs as "
            "anybody does, which stands above")),
    (("pause_schedule",), ("pause_schedule", "start_slot"),
        "a second word waits for the row, as the others on a schedule do; a start touches none"),
    (("publish", "bring", "replay_events", "drop_events"),
        tuple(name for name,
            verb in VERBS.items() if not verb.of and name not in ("publish", "bring",
                "replay_events", "drop_events")),
        ("these touch no run: what waits for an event is a row of its own, which a park writes and "
            "a sweep takes (listening-*, expecting-*)")),
    (("free_lock",), ("flush", "complete", "continue", "step"),
        "plain code gives back what it holds itself, and these what their run holds"),
)  # fmt: skip
"""These, those, and why they do not meet."""


# ---------------------------------------------------------------- writing a spec


def spec_text(spec: Spec) -> str:
    partners = ", ".join(dict.fromkeys(actors[-1].verb.says for actors in spec.meetings))
    lines = [*wrap(f"{spec.intro} {partners}.", "# "), *MUST_HOLD.splitlines(), ""]
    lines += [f"setup {{ call scene.world('{spec.place}'); }}", ""]
    sessions = {actor.name: actor for actors in spec.meetings for actor in actors}
    for actor in sessions.values():
        lines.append(f"session {actor.name}")
        lines += [
            f"step {name} {{ {sql} }}" for name, sql in actor.steps() if not name.startswith("open")
        ]
    if any(actor.gate for actor in sessions.values()):
        lines += [
            "",
            "session gates",
            "setup { call scene.shut(); }",
            "step open_1 { call scene.open(1); }",
            "step open_2 { call scene.open(2); }",
        ]
        lines += ["teardown { call scene.open(); }"]
    lines += [
        "",
        "session audience",
        "step close { call scene.close(); }",
        "step look { select * from scene.look(); }",
        "",
    ]
    lines += [f"permutation {' '.join(order)} close look" for order in spec.permutations()]
    return "\n".join(lines) + "\n"


def wrap(text: str, prefix: str, width: int = 110) -> list[str]:
    words, lines = text.removeprefix(prefix).split(), [prefix.rstrip()]
    for word in words:
        if len(lines[-1]) + len(word) + 1 > width:
            lines.append(prefix.rstrip())
        lines[-1] += f" {word}"
    return lines
