"""Changed code against a recorded history: it is reported, or it does not matter - never is another
call's result taken.

Every example workflow is recorded, and then replayed by code in which one durable call is missing,
is one too many, has changed places with the next, has another name or is of another kind. The
judgement is made here from the history alone: whatever left a trace in it must be asked for again,
under the same number, kind and name.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import json
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from enginekit import NoHost, WatchedExecution, Worker, make_driver
from enginestore import Store, StoredRun
from exampleflows import EXAMPLES, Example, add, book, charged_child, each_example, look_up, paid

import pgflow
from pgflow import read, step, workflow
from pgflow._engine.calls import ChildCall, SignalCall, StepCall
from pgflow._engine.execution import Program
from pgflow._model.kinds import Kind
from pgflow._model.units import Unit


@step
async def extra() -> None: ...


class ChangedCode(WatchedExecution):
    """Runs code in which the n-th thing that is asked for is changed."""

    change = "none"
    nth = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._asked = 0
        self._held_back: Any = None
        super().__init__(*args, **kwargs)

    def _is_it(self) -> bool:
        self._asked += 1
        return self._asked - 1 == self.nth

    def issue_step(self, spec: Any, args: Any, kwargs: Any, rests_on: Any = None) -> StepCall:
        if self._is_it():
            if self.change == "rename":
                spec = dataclasses.replace(spec, name=f"new {spec.name}")
            elif self.change == "effect":
                spec = dataclasses.replace(spec, effect="r" if spec.effect == "s" else "s")
            elif self.change == "insert":
                super().issue_step(extra.spec(()), (), {})
            elif self.change == "insert the same":
                super().issue_step(spec, args, kwargs)
            elif self.change == "delete":
                call = StepCall(10**6, spec.name, self.code.waiter(), spec=spec)
                call.waiter.set_result(None)  # type: ignore[union-attr]
                return call
            elif self.change == "kind":
                super().start_timer(5, lambda: None)
        return super().issue_step(spec, args, kwargs, rests_on)

    def issue_signal(self, name: str, *args: Any) -> SignalCall:
        if self._is_it():
            if self.change == "rename":
                name = f"new {name}"
            elif self.change == "insert":
                super().issue_step(extra.spec(()), (), {})
            elif self.change == "delete":
                call = SignalCall(10**6, name, self.code.waiter(), codec=args[0])
                call.waiter.set_result(0)  # type: ignore[union-attr]
                return call
        return super().issue_signal(name, *args)

    def issue_child(self, request: Any, *args: Any) -> ChildCall:
        if self._is_it():
            if self.change == "rename":
                request = dataclasses.replace(request, workflow=f"new {request.workflow}")
            elif self.change == "insert":
                super().issue_step(extra.spec(()), (), {})
            elif self.change == "delete":
                call = ChildCall(
                    10**6,
                    request.workflow,
                    self.code.waiter(),
                    request=request,
                    result=args[0],
                    errors=args[1],
                )
                call.waiter.set_result("")  # type: ignore[union-attr]
                return call
        return super().issue_child(request, *args)

    def start_timer(self, delay_seconds: float, fire: Callable[[], None]) -> Callable[[], None]:
        if self._is_it():
            if self.change == "insert":
                super().issue_step(extra.spec(()), (), {})
            elif self.change == "delete":
                fire()
                return lambda: None
        return super().start_timer(delay_seconds, fire)

    def set_state(self, text: str) -> None:
        if self._is_it():
            if self.change == "insert":
                super().emit("new", "1")
            elif self.change == "delete":
                return
        super().set_state(text)

    def emit(self, stream: str, text: str) -> None:
        if self._is_it():
            if self.change == "rename":
                stream = f"new {stream}"
            elif self.change == "insert":
                super().set_state("{}")
            elif self.change == "delete":
                return
        super().emit(stream, text)


CHANGES = ("rename", "effect", "insert", "insert the same", "delete", "kind")


def changed(change: str, nth: int) -> type[ChangedCode]:
    return type("Changed", (ChangedCode,), {"change": change, "nth": nth})


def replay_changed(
    run: StoredRun, units: list[Unit], execution_class: type[ChangedCode]
) -> ChangedCode:
    claim = run.claim(0, run.created_us)
    claim.units, claim.last_seq = list(units), len(units)
    program = Program(lambda e: make_driver(e, run.workflow), run.workflow.result_codec)
    execution = execution_class(claim, NoHost(), program)
    execution.start()
    execution.close()
    return execution


STEP_UNITS = {
    Kind.STEP_STARTED, Kind.STEP_COMPLETED, Kind.STEP_FAILED, Kind.ATTEMPT_FAILED,
    Kind.STEP_ABANDONED,
}  # fmt: skip
NOTES = {Kind.STATE_SET, Kind.EMITTED, Kind.PATCHED, Kind.CLOCK_READ}


def traces(units: list[Unit], *, licences: bool) -> dict[int, set[tuple[str, str | None]]]:
    """By call: what kind of thing under what name the history knows it as; ``licences``: steps too
    of which only attempts are known.
    """
    found: dict[int, set[tuple[str, str | None]]] = {}
    for unit in units:
        for number, effect, name, *_ in unit.starts or () if licences else ():
            found.setdefault(number, set()).add((f"step {effect}", name))
        if (
            unit.call == 0
            or unit.kind == Kind.STEP_STARTED
            or (unit.kind == Kind.ATTEMPT_FAILED and not licences)
        ):
            continue
        if unit.kind in STEP_UNITS:
            found.setdefault(unit.call, set()).add(("step", unit.name))
        elif unit.kind in (Kind.TIMER_STARTED, Kind.TIMER_FIRED):
            found.setdefault(unit.call, set()).add(
                ("wait", unit.name) if unit.name else ("timer", "timer")
            )
        elif unit.kind == Kind.SIGNAL_RECEIVED:
            found.setdefault(unit.call, set()).add(("signal", unit.name))
        elif unit.kind == Kind.WAIT_TIMED_OUT:
            found.setdefault(unit.call, set()).add(("wait", unit.name))
        elif unit.kind in (Kind.LOCK_ASKED, Kind.LOCK_WON):
            found.setdefault(unit.call, set()).add(("lock", unit.name))
        elif unit.kind == Kind.LOCK_RELEASED:
            found.setdefault(unit.call, set()).add(("any", unit.name))
        elif unit.kind in (Kind.CHILD_STARTED, Kind.CHILD_FINISHED):
            found.setdefault(unit.call, set()).add(("child", unit.name))
        elif unit.kind == Kind.CALL_CANCELLED:
            found.setdefault(unit.call, set()).add(("any", unit.name))
        elif unit.kind in NOTES:
            found.setdefault(unit.call, set()).add((f"note {unit.kind}", unit.name))
    return found


def asked(execution: WatchedExecution) -> dict[int, set[tuple[str, str | None]]]:
    """By call: what the code asked for."""
    found: dict[int, set[tuple[str, str | None]]] = {}
    for _, event in execution.trace:
        if isinstance(event[0], int):
            number, kind, name, effect = event
            found[number] = {(kind, name), ("any", name), (f"step {effect}", name)}
            if kind in ("signal", "lock"):
                found[number].add(("wait", name))
    return found


def mismatch(
    units: list[Unit], execution: WatchedExecution, *, licences: bool = False
) -> str | None:
    """The first trace that the code does not account for; notes are left to the order of the
    journal itself.
    """
    now = asked(execution)
    for number, traits in sorted(traces(units, licences=licences).items()):
        if any(kind.startswith("note") for kind, _ in traits):
            continue
        missing = traits - now.get(number, set())
        if missing:
            return f"call {number} was {sorted(map(str, missing))}, now it is {now.get(number)}"
    return None


def each_length(one_of: int) -> Any:
    """Run a test with one of so many lengths of a journal, and in full with all of them."""
    every = pytest.param(1, id="all", marks=pytest.mark.full)
    return pytest.mark.parametrize("one_of", [pytest.param(one_of, id="few"), every])


def some_lengths(run: StoredRun, one_of: int) -> list[int]:
    """Lengths of a part of the journal: one of so many from the first unit on, and all of it."""
    return sorted({*range(0, len(run.units), one_of), min(1, len(run.units)), len(run.units)})


def recorded(example: Example, seed: int = 0) -> tuple[Store, StoredRun]:
    """A first run; continued runs are judged by their first generation."""
    store, run = example.start()
    Worker(store, seed=seed).finish_at_random()
    return store, run


def replays_of_changed_code(
    run: StoredRun, units: list[Unit], changes: Any = CHANGES
) -> Iterator[ChangedCode]:
    for change in changes:
        nth = 0
        while True:
            execution = replay_changed(run, units, changed(change, nth))
            if execution._asked <= nth:
                break
            yield execution
            nth += 1


@each_example(2, 10)
def test_the_code_as_it_was_diverges_from_no_part_of_its_history(example, seeds):
    for seed in seeds:
        _, run = recorded(example, seed)
        for length in range(len(run.units) + 1):
            execution = replay_changed(run, run.units[:length], ChangedCode)
            assert execution.history.divergence is None
            assert mismatch(run.units[:length], execution, licences=True) is None


@pytest.fixture
def unwound_arguments() -> Iterator[None]:
    """Code that is taken apart between making a coroutine and handing it to asyncio leaves it
    unawaited: Python says so.

    It says so where the collector comes by, which must not be inside a named tuple: nothing can be
    imported there.
    """
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "coroutine '.*' was never awaited", RuntimeWarning)
            yield
            gc.collect()
    finally:
        gc.enable()


@pytest.mark.usefixtures("unwound_arguments")
@each_example()
@each_length(4)
def test_a_change_is_reported_or_does_not_contradict_the_history(example, one_of):
    _, run = recorded(example)
    reported = compatible = 0
    for length in some_lengths(run, one_of):
        units = run.units[:length]
        if run.workflow.is_async or length in (1, len(run.units) // 2, len(run.units)):
            for execution in replays_of_changed_code(
                run, units, CHANGES if run.workflow.is_async else ("rename", "insert", "effect")
            ):
                if execution.history.divergence is not None:
                    reported += 1
                    assert re.search("the journal|the code", str(execution.history.divergence))
                else:
                    compatible += 1
                    what = f"{type(execution).change} {type(execution).nth} against {[str(u) for u in units]}"
                    assert mismatch(units, execution) is None, what
    assert reported > 3
    assert compatible > 3


@pytest.mark.full
@pytest.mark.usefixtures("unwound_arguments")
@each_length(9)
def test_no_change_makes_the_code_forget_a_step_that_may_have_acted(one_of):
    for example in EXAMPLES:
        if example.workflow.is_async:
            _, run = recorded(example)
            for length in some_lengths(run, one_of):
                for execution in replays_of_changed_code(
                    run, run.units[:length], ("rename", "insert", "delete", "kind")
                ):
                    if execution.history.divergence is None:
                        assert mismatch(run.units[:length], execution, licences=True) is None, (
                            example.name
                        )


@each_example()
def test_a_change_that_is_reported_writes_no_unit_and_holds_the_run(example):
    store, run = recorded(example)
    journal = [u for u in run.units if u.kind != Kind.CONTINUED]
    for change, nth in [(change, nth) for nth in range(8) for change in ("rename", "insert")]:
        run.place, run.status, run.units, run.held = "ready", None, list(journal), None
        worker = Worker(store, execution=changed(change, nth))
        worker.settle()
        if worker.attempts[0].history.divergence is None:
            continue
        assert run.units == journal
        assert run.place == "held"
        state, reason, code_hash, detail, by = run.held
        assert (state, reason, code_hash, by) == ("stuck", "nondeterminism", "code", "pgflow")
        assert detail["message"].startswith(f"run '{run.key}' ({run.workflow.name}): ")
        return
    raise AssertionError("no change of the first calls was noticed")


def held(run: StoredRun) -> str:
    assert run.place == "held", run
    assert run.held[1] == "nondeterminism"
    return str(run.held[3]["message"])


def replayed_by(run: StoredRun, flow: Any) -> Worker:
    """Another version of the code goes on with a run."""
    store = Store(flow, charged_child)
    other = dataclasses.replace(run, workflow=flow, place="ready", status=None)
    store.runs[run.run_id] = other
    worker = Worker(store)
    worker.settle()
    return worker


def version(*calls: Any) -> Any:
    """A workflow that makes these calls, one after the other."""

    async def versioned() -> None:
        for call in calls:
            await call()

    return workflow(name="versioned")(versioned)


def recorded_version(*calls: Any) -> StoredRun:
    flow = version(*calls)
    store = Store(flow, charged_child)
    run = store.start(flow)
    Worker(store).finish()
    assert run.status == "completed", run
    return run


def adding() -> Any:
    return add(1, 2)


def booking() -> Any:
    return book("x")


def looking() -> Any:
    return look_up("x")


def sleeping() -> Any:
    return asyncio.sleep(3)


def hearing() -> Any:
    return paid.wait()


def delegating() -> Any:
    return pgflow.run_child(charged_child, 1)


async def telling() -> None:
    pgflow.set_state(a=1)


async def emitting() -> None:
    pgflow.emit("stream", 1)


async def nothing() -> None: ...


SIDES = [
    ([adding, looking], [looking, adding],
        "the journal has call 1 as step 'add', the code asks for call 1: step 'look_up'"),
    ([looking, looking], [booking, looking],
        "step completed 'look_up', call 1, the code asks for call 1: step 'book'"),
    ([looking, looking], [sleeping, looking],
        "step completed 'look_up', call 1 here, the code asks for timer started  as call 1"),
    ([looking, looking], [hearing, looking],
        "step completed 'look_up', call 1, the code asks for call 1: signal 'paid'"),
    ([looking, looking], [delegating, looking],
        "step completed 'look_up', call 1, the code asks for call 1: child 'charged_child'"),
    ([sleeping, looking], [looking, looking],
        ("timer started, call 1 here, which the code no longer does; it waits for call 1: step "
            "'look_up'")),
    ([telling, looking], [looking],
        "state set, call 1 here, which the code no longer does; it waits for call 1: step 'look_up'"),
    ([emitting, looking], [telling, looking],
        "emitted 'stream', call 1 here, the code asks for state set  as call 1"),
    ([delegating, looking], [looking, looking],
        "child started 'charged_child', call 1, the code has call 1: step 'look_up'"),
    ([looking, looking], [looking],
        "the code ends where the journal goes on with unit 2: step completed 'look_up', call 2"),
    ([looking, telling], [looking],
        "the code ends where the journal goes on with unit 2: state set, call 2"),
    ([looking], [nothing],
        "the code ends where the journal goes on with unit 1: step completed 'look_up', call 1"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("before", "after", "message"),
    SIDES,
    ids=[f"{[c.__name__ for c in b]}-{[c.__name__ for c in a]}" for b, a, _ in SIDES],
)
def test_the_report_names_both_sides(before, after, message):
    run = recorded_version(*before)
    worker = replayed_by(run, version(*after))
    after_run = worker.store.runs[1]
    assert message in held(after_run)
    assert after_run.units == run.units


async def helper() -> None:
    await asyncio.sleep(1)  # the line that is reported


LINE = next(
    n
    for n, text in enumerate(Path(__file__).read_text().splitlines(), 1)
    if "the line that is reported" in text
)


def test_the_report_names_the_source_line_of_the_call_that_differs():
    run = recorded_version(looking, looking)
    worker = replayed_by(run, version(looking, helper))
    where = worker.store.runs[1].held[3]["where"]
    assert f"{__file__}:{LINE} in helper" in where


def test_the_report_names_the_source_line_at_which_the_code_waits_for_something_else():
    async def waits() -> None:
        await booking()

    run = recorded_version(looking, looking)
    worker = replayed_by(run, version(looking, waits))
    where = worker.store.runs[1].held[3]["where"]
    assert any(re.search(r":\d+ in versioned$", line) for line in where)
    assert any(re.search(r":\d+ in waits$", line) for line in where)


def crashed_while_running(flow: Any, *args: Any) -> tuple[Worker, StoredRun]:
    """A run whose first body has started, perhaps acted, and not come back."""
    store = Store(flow, charged_child)
    run = store.start(flow, *args)
    worker = Worker(store)
    worker.settle()
    worker.crash()
    return worker, run


@pytest.mark.parametrize(
    "instead",
    [[booking], [looking], [sleeping], [hearing], [delegating], [telling], []],
    ids=lambda calls: calls[0].__name__ if calls else "nothing",
)
def test_code_that_no_longer_asks_for_a_step_that_may_have_acted_is_reported(instead):
    _, run = crashed_while_running(version(adding))
    worker = replayed_by(run, version(*instead))
    other = worker.store.runs[1]
    assert "step 'add'" in held(other)
    assert other.units == run.units


def test_a_started_step_asked_for_with_other_arguments_is_reported():
    _, run = crashed_while_running(version(lambda: add(1, 2)))
    worker = replayed_by(run, version(lambda: add(1, 3)))
    assert "was started with other arguments than the code passes now" in held(worker.store.runs[1])


def test_a_started_step_asked_for_again_with_the_same_arguments_goes_on():
    _, run = crashed_while_running(version(lambda: add(1, 2)))
    worker = replayed_by(run, version(lambda: add(1, 2)))
    worker.finish()
    assert worker.store.runs[1].status == "completed"
    assert worker.store.runs[1].kinds() == "sc"


def test_a_finished_step_may_be_asked_for_with_other_arguments():
    """Its result is the history's, whatever the arguments have become."""
    run = recorded_version(lambda: add(1, 2), looking)
    worker = replayed_by(run, version(lambda: add(5, 6), looking))
    worker.finish()
    assert worker.store.runs[1].status == "completed"


def test_a_read_that_has_not_come_back_may_change():
    _, run = crashed_while_running(version(telling, looking))
    worker = replayed_by(run, version(telling, booking))
    worker.finish()
    assert worker.store.runs[1].status == "completed"


@read(retries=pgflow.Retries(3))
async def stumbling() -> None:
    raise ValueError("no")


def failing_once() -> tuple[Worker, StoredRun]:
    """A read whose first attempt has failed, durably."""
    flow = version(telling, stumbling)
    store = Store(flow)
    run = store.start(flow)
    worker = Worker(store)
    worker.play("claim 1", "body stumbling 2")
    worker.pass_time()
    worker.settle()
    assert run.kinds() == "va"
    worker.crash()
    return worker, run


def test_failed_attempts_are_counted_on_replay():
    _, run = failing_once()
    worker = replayed_by(run, version(telling, stumbling))
    worker.finish()
    assert [worker.store.runs[1].kinds(), worker.store.runs[1].status] == ["vaaf", "failed"]


def test_the_failed_attempts_of_another_step_are_not_taken_over():
    _, run = failing_once()
    worker = replayed_by(run, version(telling, looking))
    assert "attempt failed 'stumbling'" in held(worker.store.runs[1])


def test_a_started_child_is_not_started_again():
    flow = version(delegating, looking)
    store = Store(flow, charged_child)
    run = store.start(flow)
    worker = Worker(store)
    worker.play("claim 1", "send 1", "commit 1")
    assert run.kinds() == "k"
    worker = worker.crash()
    worker.finish()
    assert run.status == "completed"
    assert list(store.runs) == [1, 2]


def test_a_child_that_is_no_longer_asked_for_is_reported():
    _, run = crashed_while_running(version(delegating))
    worker = replayed_by(run, version(looking))
    found = held(worker.store.runs[1])
    assert "child started 'charged_child', call 1, the code has call 1: step 'look_up'" in found


def test_a_child_of_another_workflow_is_reported():
    @workflow(name="another")
    async def another(cents: int) -> None: ...

    _, run = crashed_while_running(version(delegating))
    worker = replayed_by(run, version(lambda: pgflow.run_child(another, 1)))
    assert "the code has call 1: child 'another'" in held(worker.store.runs[1])


def test_words_of_operators_are_read_over():
    flow = version(looking, booking)
    store = Store(flow)
    run = store.start(flow)
    worker = Worker(store)
    worker.play("claim 1")
    store.pause(run)
    worker.settle()
    worker.play("body look_up 1")
    worker.settle()
    assert run.kinds() == "co"
    store.resume(run)
    worker.finish()
    assert run.kinds()[:3] == "coo"
    assert run.status == "completed"
    execution = replay_changed(run, run.units, ChangedCode)
    assert execution.history.divergence is None


def test_a_run_goes_on_with_the_code_as_it_was():
    run = recorded_version(looking, looking)
    run.units.pop()
    worker = replayed_by(run, version(booking, looking))
    other = worker.store.runs[1]
    assert held(other)
    worker.store.resume(other)
    other.workflow = run.workflow
    worker.finish()
    assert other.status == "completed"
    assert other.kinds() == "coc"


def test_code_that_catches_everything_does_not_catch_a_divergence():
    async def stubborn() -> None:
        for call in (booking, telling, emitting):
            try:
                await call()
            except BaseException:
                pass

    run = recorded_version(looking, looking)
    flow = workflow(name="versioned")(stubborn)
    worker = replayed_by(run, flow)
    assert "the code asks for call 1: step 'book'" in held(worker.store.runs[1])
    assert worker.store.runs[1].units == run.units


def test_code_that_tries_for_ever_does_not_outlive_a_divergence():
    tries = 0

    async def tireless() -> None:
        nonlocal tries
        while True:
            try:
                await booking()
            except BaseException:
                tries += 1
                if tries > 1000:
                    raise asyncio.InvalidStateError(
                        "nothing would ever give control back"
                    ) from None

    run = recorded_version(looking, looking)
    worker = replayed_by(run, workflow(name="versioned")(tireless))
    assert "the code asks for call 1: step 'book'" in held(worker.store.runs[1])
    assert tries <= 500


def test_nothing_starts_once_the_code_has_diverged():
    async def both() -> None:
        await asyncio.gather(booking(), asyncio.sleep(1))

    run = recorded_version(looking, looking)
    worker = replayed_by(run, version(both))
    assert worker.bodies == []
    assert worker.store.runs[1].units == run.units


def test_a_recorded_result_that_no_longer_fits_its_annotation_is_reported():
    @step(name="look_up")
    async def look_up_number(name: str) -> int:
        return len(name)

    run = recorded_version(looking)
    as_step = version(lambda: look_up_number("x"))
    worker = replayed_by(run, as_step)
    found = held(worker.store.runs[1])
    assert "the recorded result of step look_up does not fit its annotation int" in found


def test_a_changed_input_is_an_error_of_the_run_and_not_a_divergence():
    @workflow(name="narrow")
    async def narrow(n: int) -> int:
        return n

    store = Store(narrow)
    run = store.start(narrow, 1)
    run.input = json.dumps({"n": "x"})
    Worker(store).finish()
    assert run.status == "failed"
    with pytest.raises(pgflow.errors.NotStorable, match="the input of workflow narrow"):
        run.result()
