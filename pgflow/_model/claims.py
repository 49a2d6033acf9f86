"""A claimed run: its journal so far, and what it has inherited."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pgflow._model.effects import Ref
from pgflow._model.envelopes import Envelopes
from pgflow._model.protocol import SagaEntry
from pgflow._model.units import Unit, parse_units


@dataclass
class Heritage:
    """State that a run inherits with the journal of another run; ``sql/again/inherit.sql``.

    Attributes:
        seeds: Stems of random numbers, each with the last seq it applies to; None for all. Later
            units use the run's own stem.
        cut: Last seq of the other run's journal.
        began_us: Begin of the run's time; None for its creation.
        attempts: Maximum attempts of each step; None for the declared one.
        carried: Outcomes of steps in a dropped part of the journal, in order, by name and hash of
            arguments.
        effects: Confirmed effects of a dropped part, by the place of their keys (:func:`place_of`)
            and hash of arguments.
        children: Children of a dropped part that are completed or open, in the order of their
            starts.
        undo: Effects of a dropped part to compensate before the code continues, the last first.
    """

    seeds: list[tuple[int | None, str]]
    cut: int = 0
    began_us: int | None = None
    attempts: int | None = None
    carried: dict[tuple[str, int], list[ReusedStep]] = field(default_factory=dict)
    effects: dict[tuple[str, int], CarriedEffect] = field(default_factory=dict)
    children: list[CarriedChild] = field(default_factory=list)
    undo: list[Dropped] = field(default_factory=list)


class ReusedStep(NamedTuple):
    """A step of a dropped part of a journal. ``result``: what it returned, as JSON; None if it did
    not complete, and runs under ``key``.
    """

    key: str
    result: str | None


class CarriedEffect(NamedTuple):
    """A confirmed effect of a dropped part of a journal: its key, and what it returned, as JSON.

    ``note`` says where it was done and, if its result is an acceptance, that this was confirmed.
    """

    key: str
    result: str
    note: dict[str, Any]


class CarriedChild(NamedTuple):
    """A child of a dropped part of a journal. ``call``: the call under which its result comes.
    ``key``: None if it was made up.
    """

    call: int
    workflow: str
    input: str
    key: str | None
    chain_id: int


class Dropped(NamedTuple):
    """An effect to be taken back. ``call``: the call under which an open one goes on; 0 for a
    closed one. ``result``: as JSON.
    """

    seq: int
    call: int
    name: str
    key: str
    args_hash: int
    request: str
    result: str | None
    note: dict[str, Any]


_STEM = re.compile(r"^[0-9a-f-]{36}(?:~\d+)?")


def place_of(key: str) -> str:
    """An idempotency key without what differs between generations:
    where in the program it is asked for.
    """
    return _STEM.sub("", key)


class Offer(NamedTuple):
    """The one message in the mailbox of a run: a signal, or the result of a child.

    Attributes:
        signal_id: Number of the message.
        name: Of the signal; of a result, its call as the mailbox has it.
        payload: A JSON text.
        sent_us: Time of sending, in microseconds.
        call: Of a result, the call that waits for it; None for a signal.
        workflow: Of a result, the child's.
    """

    signal_id: int
    name: str
    payload: str
    sent_us: int
    call: int | None = None
    workflow: str | None = None


@dataclass
class Claim:
    """A run that this worker holds."""

    run_id: int
    token: int
    chain_id: int
    lane_id: int
    generation: int
    attempt: int
    suspect: int
    last_seq: int
    key: str
    root: str
    input: str
    units: list[Unit]
    has_mail: bool
    created_us: int
    now_us: int
    priority: int = 0
    took_us: int = 0
    """Microseconds that the claim that brought it looked for runs."""
    workflow: str = ""
    tenant: str = ""
    parent_run_id: int | None = None
    leaves_saga: bool = False
    """True if its parent takes its effects back when that fails after this run has completed."""
    deadline_us: int | None = None
    labels: dict[str, str] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    has_beats: bool = False
    heritage: Heritage | None = None
    saga: list[SagaEntry] = field(default_factory=list)
    offer: Offer | None = None
    lost: dict[int, list[Ref]] = field(default_factory=dict)
    """By call, what its recorded result claims to exist and does not."""
    pool: str | None = None
    """The pool that it draws on; None = none."""
    is_pool_hard: bool = False
    """True if each of its steps asks that pool."""

    page: str | None = None
    """The first units of its journal as they were sent, until they are read."""

    def read_page(self) -> None:
        """Read the units that came with the claim."""
        if self.page is not None:
            self.units, self.page = parse_units(self.page), None

    def renew(self, claim: Claim) -> None:
        """Take over what another claim of the same run says of the lease and the mail."""
        self.token, self.attempt, self.suspect = claim.token, claim.attempt, claim.suspect
        self.has_mail, self.offer = claim.has_mail, claim.offer
        self.now_us, self.took_us, self.priority = claim.now_us, claim.took_us, claim.priority
        self.lane_id, self.deadline_us = claim.lane_id, claim.deadline_us
        self.has_beats = claim.has_beats

    @property
    def is_suspect(self) -> bool:
        """True if more than one worker has died over it. A first death delays no run."""
        return self.suspect > 1

    envelopes: Envelopes | None = None
    """Seals the values that are recorded of it; None where the app has no codec."""
    is_in_cluster: bool = False
    """True if what it sends may be for another node."""

    @property
    def has_kin(self) -> bool:
        """True if the end of the run concerns others: a parent, the list of deadlines, or
        heartbeats to be forgotten.
        """
        return self.parent_run_id is not None or self.deadline_us is not None or self.has_beats

    @property
    def stem(self) -> str:
        """Beginning of the idempotency keys of this generation."""
        return self.root if self.generation == 1 else f"{self.root}~{self.generation}"
