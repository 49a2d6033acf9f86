"""The engine's objects, in so far as a compiler might take their classes for something else."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import gc
import json

import pytest
from enginekit import NoHost, make_driver, run_to_end
from enginestore import Store
from exampleflows import add

from pgflow import workflow
from pgflow._engine.calls import StepCall, TimerCall, spec_of_another
from pgflow._engine.effects import EffectCall
from pgflow._engine.execution import Execution, Program
from pgflow._engine.journal import Journal
from pgflow._model.kinds import Kind
from pgflow._model.units import Unit

SPEC = spec_of_another("ship")
UNIT = Unit(1, 7, Kind.STEP_COMPLETED, "ship", "1", None, 0, None)


@workflow
async def napping() -> int:
    await asyncio.sleep(5)
    return await add(1, 2)


def test_what_is_known_of_a_whole_journal_is_found_out_once():
    journal = Journal([UNIT])
    assert journal.called == {7}
    assert journal.called is journal.called


def test_a_journal_is_finished_once_only_units_of_operators_are_left():
    journal = Journal([UNIT, UNIT._replace(kind=Kind.OPERATOR)])
    assert not journal.is_finished
    for _ in range(2):
        journal.take()
        assert journal.is_finished


def test_a_call_is_equal_to_itself_alone():
    one, other = StepCall(1, "ship", None, spec=SPEC), StepCall(1, "ship", None, spec=SPEC)
    assert one != other
    assert {one: 1}.get(other) is None
    assert one.kwargs is not other.kwargs


@pytest.mark.parametrize("kind", [StepCall, EffectCall])
def test_a_call_of_a_step_has_a_spec_from_the_start(kind):
    with pytest.raises(TypeError, match="spec"):
        kind(1, "ship", None)


def test_calls_and_units_can_be_copied_and_replaced():
    call = EffectCall(1, "ship", None, spec=SPEC)
    assert (copy.copy(call).spec, dataclasses.replace(call, is_foreign=True).is_foreign) == (
        SPEC,
        True,
    )
    found = [field.name for field in dataclasses.fields(TimerCall)][:3]
    assert found == ["number", "name", "waiter"]
    assert UNIT._replace(kind=Kind.STEP_FAILED).is_outcome


def test_numbers_have_no_bound():
    unit = Unit(1, 7, Kind.TIMER_STARTED, None, None, None, 2**63, None)
    assert Journal([unit._replace(call=2**63)]).called == {2**63}


def test_a_delay_in_whole_seconds_is_recorded_as_any_other():
    _, run = run_to_end(napping)
    assert [
        json.dumps(json.loads(unit.payload or ""))
        for unit in run.units
        if unit.kind == Kind.TIMER_STARTED
    ] == ["5.0"]


def test_an_execution_that_holds_itself_is_collected():
    store = Store(napping)
    claim = store.start(napping).claim(0, 0)
    gc.collect()
    before = _executions()
    for _ in range(20):
        execution = Execution(
            claim, NoHost(), Program(lambda e: make_driver(e, napping), napping.result_codec)
        )
        execution.start()
        execution.close()
        execution.flushing.acknowledged_from({"by": execution})
    del execution
    gc.collect()
    assert _executions() == before


def _executions() -> int:
    return sum(type(found) is Execution for found in gc.get_objects())


class Looks(NoHost):
    """A host that keeps the looks that it is asked for."""

    def __init__(self) -> None:
        self.delays: list[float] = []

    def look_later(self, execution: Execution, delay_seconds: float) -> None:
        self.delays.append(delay_seconds)


@workflow
async def dozing() -> None:
    await asyncio.sleep(0.5)


def test_a_run_arranges_no_look_while_its_question_is_on_its_way():
    """A look that came meanwhile would have the next sleep asked for before it is due."""
    host = Looks()
    claim = Store(dozing).start(dozing).claim(0, 0)
    program = Program(lambda e: make_driver(e, dozing), dozing.result_codec)
    execution = Execution(claim, host, program)
    execution.start()
    assert len(host.delays) == 1
    assert 0.5 <= host.delays[0] < 0.6
    execution.poke()
    flush = execution.flushing.take()
    assert flush is not None
    assert flush.question is not None
    assert flush.question["timers"] == [[1, 1, Kind.TIMER_FIRED]]
    assert len(host.delays) == 1
    execution.close()
