"""Stories: one run, gate, debt or worker in full, with the orders that it takes.

A journal may be long. A story covers its newest part, so a run of a hundred thousand steps shows as
fast as one of ten.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from pgflow import inspect
from pgflow.console.backend import Backend
from pgflow.console.bars import Marks, draw_entries
from pgflow.console.debts import EFFECT_STATES, OBLIGATION_STATES, orders_of_debt
from pgflow.console.gates import ENDS, asks, orders_of_gate
from pgflow.console.orders import OPEN, BoundOrder, Person, orders_of_run
from pgflow.console.output import (
    amount,
    duration,
    make_table,
    plain,
    printable,
    styled_status,
    table,
)
from pgflow.console.words import MOST_CHARS, advice, age, whole, why
from pgflow.errors import GateClosed, RunNotFound
from pgflow.tui.views import Place

WINDOW_UNITS = 200
MOST_ROWS = 30


@dataclass
class Story:
    """One thing in full.

    Attributes:
        title: Its heading.
        parts: Parts of the story.
        orders: Orders that fit it.
        links: Other things that it leads to, with words for each.
    """

    title: str
    parts: list[RenderableType]
    orders: list[BoundOrder] = field(default_factory=list)
    links: list[tuple[str, Place]] = field(default_factory=list)


@dataclass(frozen=True)
class StoryReader:
    """Reads stories from a backend.

    Attributes:
        backend: The backend.
        person: Person who reads and may give orders; None if read-only.
        now: Time on the database's clock.
        width: Cells of a line.
    """

    backend: Backend
    person: Person | None
    now: datetime
    width: int

    async def read(self, place: Place) -> Story:
        """Return the story of a thing.

        Raises:
            RunNotFound: The run or worker does not exist, or nothing is owed under this key.
            GateClosed: The gate was answered, has expired, or is no longer wanted.
        """
        readers = {"run": self._run, "gate": self._gate, "debt": self._debt, "worker": self._worker}
        page, key = place
        return await readers[page](key)

    # ------------------------------------------------------------ runs

    async def _run(self, key: str) -> Story:
        run = await self.backend.ask(inspect.find_detail(key, tenant=self.backend.tenant))
        story = Story(f"run {run.key}", self._head(run))
        if self.person is not None:
            story.orders += orders_of_run(run, self.person)
        story.parts += self._values(run)
        story.parts += await self._journal(run)
        await self._tell_ledgers(run, story)
        await self._tell_kin(run, story)
        return story

    def _head(self, run: inspect.RunDetail) -> list[RenderableType]:
        line = Text.assemble(
            styled_status(run.status), "  ", plain(run.workflow), "  ", "started ",
            age(run.created_at, self.now),
            f", generation {run.generation}" if run.generation > 1 else "",
            f", worker {run.worker_id}" if run.worker_id is not None else "",
        )  # fmt: skip
        parts = [why(run), f"({run.why})" if run.why else "", advice(run)]
        return [line, plain(" ".join(filter(None, parts)))]

    def _values(self, run: inspect.RunDetail) -> list[RenderableType]:
        found = [("Input", run.input)]
        found += [("Output", run.output)] if run.status == "completed" else []
        parts: list[RenderableType] = []
        for name, value in found:
            parts += [_heading(name), _value(self.backend.clear(value))]
        if run.error:
            error = self.backend.clear(run.error)
            parts += [_heading("Error"), _red(inspect.describe_error(error))]
        return parts

    async def _journal(self, run: inspect.RunDetail) -> list[RenderableType]:
        """Return the newest part of the journal as lines on one axis of time."""
        last = await self.backend.ask(inspect.last_seq(run.run_id))
        after = max(0, last - WINDOW_UNITS)
        question = inspect.list_units(run.run_id, after=after, limit=WINDOW_UNITS)
        units = (await self.backend.ask(question)).items
        if not units:
            return []
        begin = units[0].at if after else run.created_at
        until = self.now if run.status in OPEN else units[-1].at
        entries = inspect.fold(units, begin)
        earlier = f" (the newest {WINDOW_UNITS} of {last:,} units)" if after else ""
        errors = [
            _red(f"{entry.name}: {inspect.describe_error(self.backend.clear(failure.error))}")
            for entry in entries
            for failure in entry.failures[-3:]
        ]
        return [
            _heading(f"What it did{earlier}"),
            draw_entries(entries, begin, until, until, self.width, Marks()),
            *errors,
        ]

    async def _tell_ledgers(self, run: inspect.RunDetail, story: Story) -> None:
        for gate in await self.backend.ask(inspect.list_gates(run.key, tenant=self.backend.tenant)):
            story.links.append((f"gate {gate.name}", ("gate", gate.gate)))
        story.links += [
            (f"{debt.kind} {debt.name}, {debt.state or 'open'}", ("debt", debt.effect))
            for debt in await self.backend.ask(inspect.list_debts(run.run_id))
            if debt.kind != "gate" and debt.effect
        ]
        ask = self.backend.ask
        decisions = (await ask(inspect.list_decisions(run.run_id, limit=MOST_ROWS))).items
        if decisions:
            story.parts.append(_heading("Decisions"))
            story.parts += [self._decision(one) for one in decisions]
        effects = (await ask(inspect.list_effects(run.run_id, limit=MOST_ROWS))).items
        if effects:
            story.parts += [_heading("Effects"), _effects(effects, self.width)]
        spent = await ask(inspect.sum_charges("run", run_id=run.run_id))
        if spent:
            line = ", ".join(f"{amount(row.amount)} {row.unit}" for row in spent)
            story.parts += [_heading("Spent"), plain(line)]

    def _decision(self, one: inspect.DecisionRow) -> Text:
        parts = [f"{one.name}: {_line(self.backend.clear(one.value))}"]
        parts += [f"because {one.why}"] if one.why else []
        parts += [f"evidence {_line(self.backend.clear(one.evidence))}"] if one.evidence else []
        if one.alternatives:
            parts.append(f"instead of {_line(self.backend.clear(one.alternatives))}")
        return plain("; ".join(parts))

    async def _tell_kin(self, run: inspect.RunDetail, story: Story) -> None:
        if run.parent_run_id is not None:
            parent = await self.backend.ask(inspect.find_key(run.parent_run_id))
            if parent is not None:
                story.links.append((f"parent {parent}", ("run", parent)))
        for child in await self.backend.ask(inspect.list_children(run.run_id, limit=MOST_ROWS)):
            story.links.append((f"child {child.key}, {child.status}", ("run", child.key)))

    # ------------------------------------------------------------ gates and debts

    async def _gate(self, key: str) -> Story:
        gate = await self.backend.ask(inspect.find_gate(key, tenant=self.backend.tenant))
        if gate is None:
            raise GateClosed(
                "this gate is closed: it was answered, it expired, or its run no longer wants "
                "an answer"
            )
        shown = self.backend.clear(gate.request)
        asked = f"{gate.workflow} {gate.key} asks {', '.join(gate.approvers) or 'anybody'}"
        parts: list[RenderableType] = [plain(f"{asked}, {age(gate.asked_at, self.now)}.")]
        if gate.quorum > 1:
            parts.append(plain(f"{gate.quorum} people must approve."))
        if gate.expires_at is not None:
            ends = ENDS.get(gate.on_timeout, gate.on_timeout)
            parts.append(plain(f"It {ends} {age(gate.expires_at, self.now)}."))
        parts += [_heading("The exact request" + (", as edited" if gate.edited else ""))]
        parts += [_value(shown)]
        if gate.why or gate.evidence:
            parts += [_heading("Why"), plain(gate.why), _value(self.backend.clear(gate.evidence))]
        parts += [
            plain(f"{answer.get('by')}: {answer.get('verdict')} {answer.get('reason') or ''}")
            for answer in gate.answers
        ]
        story = Story(f"gate {gate.name}", parts, links=[(f"run {gate.key}", ("run", gate.key))])
        if self.person is not None:
            is_clear = self.backend.reads_everything(gate.request)
            story.orders += orders_of_gate(gate, shown, is_clear=is_clear, person=self.person)
            if not asks(gate, (self.person.name, *self.person.roles)):
                text = f"It does not ask {self.person.name}: --as names your roles."
                parts.insert(1, Text(text, style="yellow"))
        return story

    async def _debt(self, key: str) -> Story:
        debt = await self.backend.ask(inspect.find_obligation(key, tenant=self.backend.tenant))
        if debt is None or debt.kind == "gate":
            raise RunNotFound(f"nothing is owed under the key {key!r}: it is closed by now")
        says = {**EFFECT_STATES, **OBLIGATION_STATES}.get(debt.state or "", "")
        parts: list[RenderableType] = [
            plain(f"{debt.state}: {says}"),
            plain(
                f"Run {debt.key} owes it{f' to {debt.owed_to}' if debt.owed_to else ''}. It was "
                f"opened {age(debt.opened_at, self.now)}."
            ),
            plain(f"Key: {debt.effect}"),
        ]
        if debt.due_at is not None:
            parts.append(plain(f"Due {age(debt.due_at, self.now)}."))
        if debt.kind == "effect":
            question = inspect.list_effects(debt.run_id, after=debt.call - 1, limit=1)
            found = await self.backend.ask(question)
            for effect in found:
                if effect.call == debt.call:
                    parts += [_heading("Arguments"), _value(self.backend.clear(effect.request))]
        if debt.detail is not None:
            parts += [_heading("Detail"), _value(self.backend.clear(debt.detail))]
        orders = [] if self.person is None else orders_of_debt(debt, self.person)
        title = f"{debt.kind} {debt.name}"
        return Story(title, parts, orders, [(f"run {debt.key}", ("run", debt.key))])

    async def _worker(self, number: str) -> Story:
        workers = await self.backend.ask(inspect.list_workers())
        worker = next((one for one in workers if str(one.worker_id) == number), None)
        if worker is None:
            raise RunNotFound(f"worker {number} is gone")
        tenant = self.backend.tenant
        question = inspect.list_held_runs(worker.worker_id, tenant=tenant, limit=MOST_ROWS)
        held = await self.backend.ask(question)
        parts: list[RenderableType] = [
            plain(
                f"It serves {', '.join(worker.queues)}, holds {worker.running} of "
                f"{worker.concurrency}, and was started {age(worker.started_at, self.now)}."
            ),
            plain(f"Version {worker.version}. Last heard of {age(worker.beat_at, self.now)}."),
            _heading("Runs that it holds"),
            _held(held, self.now, self.width) if held else plain("None."),
        ]
        links: list[tuple[str, Place]] = [(f"run {run.key}", ("run", run.key)) for run in held]
        return Story(f"worker {worker.host}:{worker.pid}", parts, links=links)


# ---------------------------------------------------------------- parts


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _value(value: Any) -> Text:
    """Return a value in full; of a long one the beginning."""
    text = whole(value)
    left_out = len(text) - MOST_CHARS
    more = f"\n... {left_out:,} more characters: `pgflow show` has them" if left_out > 0 else ""
    return Text(text[:MOST_CHARS] + more)


def _line(value: Any) -> str:
    return value if isinstance(value, str) else " ".join(whole(value).split())


def _red(text: str) -> Text:
    return Text(printable(text), style="red")


def _held(held: list[inspect.HeldRun], now: datetime, width: int) -> RenderableType:
    columns = table(
        "RUN=key/36 workflow/24@70 FOR DOES*200",
        FOR=lambda run: duration((now - run.since).total_seconds()),
        DOES=_does,
    )
    return make_table(columns, held, width)


def _does(run: inspect.HeldRun) -> str:
    event = (run.event or "").replace("_", " ")
    return ", ".join(run.starts) or f"{event} {run.name or ''}".strip()


def _effects(effects: list[inspect.EffectRow], width: int) -> RenderableType:
    columns = table(
        "name/24 STATUS risk@90 TRIES=attempts@70 IDEMPOTENCY_KEY=effect*200",
        STATUS=lambda effect: effect.owed or effect.status,
    )
    return make_table(columns, effects, width)
