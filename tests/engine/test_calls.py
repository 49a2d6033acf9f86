"""Calls by kind: the four verbs, and the stages of an effect."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import pytest

from pgflow._engine.calls import (
    Call,
    ChildCall,
    ChildRequest,
    EffectTerms,
    SignalCall,
    StepCall,
    StepSpec,
    TimerCall,
    Waits,
    Want,
    ranges_of,
)
from pgflow._engine.effects import (
    _MOVES,
    CLOSED,
    EffectCall,
    EffectEvent,
    EffectStage,
    ImpossibleMove,
)
from pgflow._engine.events import EventCall, message_name
from pgflow._engine.gates import GateCall, GateTerms
from pgflow._engine.locks import HoldCall, LockCall
from pgflow._engine.updates import UpdateCall
from pgflow._model.budgets import Admission, Spent
from pgflow._model.codecs import ANYTHING, codec_for
from pgflow._model.effects import Accepted
from pgflow._model.events import Wanted
from pgflow._model.exceptions import ErrorClasses
from pgflow._model.gates import Approved, Escalated, Expired, Rejected, TakenOver
from pgflow._model.kinds import OUTCOMES, Kind, StepKind
from pgflow._model.options import Retries
from pgflow._model.protocol import LockRow
from pgflow._model.reasons import Unknown
from pgflow._model.units import Unit
from pgflow.errors import NotStorable

CHILD = ChildRequest("ship", "default", "[]", None, 0, None, None, None, None, "c")
TERMS = EffectTerms("compensable", True, 60.0, 10.0, Retries(), True, "shop:ship")


def spec(effect: Any = "s", terms: EffectTerms | None = None) -> StepSpec:
    return StepSpec("ship", effect, codec_for(int, "ship"), ErrorClasses(), Retries(), terms=terms)


def effect(**given: Any) -> EffectCall:
    return EffectCall(7, "ship", None, spec=spec("e", TERMS), **given)


CALLS: dict[str, tuple[Call, set[str]]] = {
    "step": (StepCall(7, "ship", None, spec=spec()),
        {Kind.STEP_COMPLETED, Kind.STEP_FAILED, Kind.BUDGET_REFUSED}),
    "decision": (StepCall(7, "ship", None, spec=spec("d")),
        {Kind.DECISION_RECORDED, Kind.STEP_FAILED, Kind.BUDGET_REFUSED}),
    "effect": (effect(),
        {Kind.EFFECT_CONFIRMED, Kind.EFFECT_FAILED, Kind.EFFECT_ACCEPTED, Kind.COMPENSATED,
            Kind.BUDGET_REFUSED}),
    "timer": (TimerCall(7, "ship", None), {Kind.TIMER_FIRED}),
    "signal": (SignalCall(7, "ship", None, codec=ANYTHING),
        {Kind.SIGNAL_RECEIVED, Kind.WAIT_TIMED_OUT}),
    "gate": (GateCall(7, "ship", None, codec=ANYTHING, request="1", value=1, terms=GateTerms()),
        {Kind.GATE_ANSWERED}),
    "lock": (LockCall(7, "ship", None, is_shared=False),
        {Kind.LOCK_WON, Kind.WAIT_TIMED_OUT, Kind.LOCK_RELEASED}),
    "hold": (HoldCall(7, "ship", None, fence=1), {Kind.LOCK_RELEASED}),
    "child": (ChildCall(7, "ship", None, request=CHILD, result=ANYTHING, errors=ErrorClasses()),
        {Kind.CHILD_FINISHED}),
}  # fmt: skip


def unit(
    kind: str,
    payload: Any = None,
    name: str | None = "ship",
    at_us: int = 0,
    due_us: int | None = None,
) -> Unit:
    return Unit(
        1, 7, kind, name, None if payload is None else json.dumps(payload), None, at_us, due_us
    )


@pytest.mark.parametrize("sort", CALLS)
def test_a_call_takes_the_outcomes_of_its_kind_and_no_others(sort):
    call, fitting = CALLS[sort]
    assert {kind for kind in OUTCOMES if call.fits(unit(kind))} == fitting
    assert {kind for kind in OUTCOMES if call.fits(unit(kind, name=None))} == fitting
    assert not any(call.fits(unit(kind, name="sail")) for kind in OUTCOMES)


def test_an_update_of_any_name_is_the_outcome_of_a_call_that_serves():
    call = UpdateCall(7, "update", None, judge=lambda taken, is_again: None)
    fitting = {Kind.UPDATE_TAKEN, Kind.WAIT_TIMED_OUT}
    assert {kind for kind in OUTCOMES if call.fits(unit(kind, name="update"))} == fitting
    assert {kind for kind in OUTCOMES if call.fits(unit(kind))} == {Kind.UPDATE_TAKEN}
    said = {"id": "1", "args": {"sku": "tea"}}
    taken, error = call.decode(unit(Kind.UPDATE_TAKEN, said))
    assert (tuple(taken), error) == (("1", "ship", {"sku": "tea"}), None)
    assert isinstance(call.decode(unit(Kind.WAIT_TIMED_OUT))[1], TimeoutError)
    waits: Waits = defaultdict(list)
    call.started_seq = 4
    call.wait(waits)
    assert waits == {"updates": [[7]], "timers": [[7, 4, "W"]]}


def test_a_wait_for_an_event_is_one_for_a_message_of_a_name_of_its_own():
    wanted = Wanted("orders" * 60, {"id": 7}, None, 3)
    names = [
        message_name(7, wanted),
        message_name(8, wanted),
        message_name(7, wanted._replace(after=None)),
        message_name(7, wanted._replace(match={"id": 8})),
    ]
    assert len(set(names)) == 4
    assert {len(name) for name in names} == {255}
    call = EventCall(7, names[0], None, codec=ANYTHING, wanted=wanted)
    assert call.fits(unit(Kind.SIGNAL_RECEIVED, name=names[0]))
    assert not call.fits(unit(Kind.SIGNAL_RECEIVED, name=names[1]))
    assert isinstance(call.decode(unit(Kind.WAIT_TIMED_OUT))[1], TimeoutError)
    waits: Waits = defaultdict(list)
    call.wait(waits)
    assert waits == {
        "signals": [[7, names[0]]],
        "events": [[7, names[0], "orders" * 60, {"id": 7}, None, 3]],
    }


def test_each_kind_names_what_only_the_database_can_end():
    waits: Waits = defaultdict(list)
    for call in (
        TimerCall(1, "timer", None, started_seq=4),
        SignalCall(2, "paid", None, codec=ANYTHING, started_seq=5),
        StepCall(4, "ship", None, "backoff", spec=spec(), retry_seq=6),
        StepCall(5, "ship", None, "running", spec=spec()),
        EffectCall(6, "ship", None, "owed", spec=spec("e", TERMS)),
        LockCall(9, "shelf", None, is_shared=True, ttl_seconds=2.0, within=(3,), started_seq=7),
        HoldCall(11, "shelf", None, fence=4),
        CALLS["child"][0],
    ):
        call.wait(waits)
    assert waits == {
        "signals": [[2, "paid"]], "timers": [[1, 4, "T"], [2, 5, "W"]], "retries": [[4, 6], [9, 7]],
        "locks": [LockRow(9, "shelf", True, 2.0, 7, [3])], "open_effects": [6],
    }  # fmt: skip


def test_calls_are_named_by_ranges():
    assert ranges_of([7, 8, 10]) == "{[7,8],[10,10]}"
    assert ranges_of([4, 3]) == "{[4,4],[3,3]}"


def test_a_gate_is_asked_once_and_then_only_waited_for():
    terms = GateTerms(("ann",), 2, 60.0, "reject", ("cto",))
    call = GateCall(7, "ship", None, codec=codec_for(int), request="1", value=1, terms=terms)
    call.key, call.payload_hash = "root/ship/1", "hash"
    waits: Waits = defaultdict(list)
    call.wait(waits)
    assert waits["gates"] == [[7, "ship"]]
    (wanted,) = waits["new_gates"]
    assert {**wanted, "shape": None} == {
        "call": 7, "name": "ship", "key": "root/ship/1", "request": "1", "hash": "hash",
        "approvers": ["ann"], "quorum": 2, "timeout": 60.0, "on_timeout": "reject",
        "escalate": ["cto"], "needs_value": False, "decision": None, "shape": None,
    }  # fmt: skip
    assert not call.read(unit(Kind.GATE_ASKED, {"request": 2}))
    assert call.read(unit(Kind.GATE_ASKED, {"request": 1}, due_us=5))
    assert call.due_us == 5
    waits: Waits = defaultdict(list)
    call.wait(waits)
    assert waits == {"gates": [[7, "ship"]]}


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ({"verdict": "approve", "by": ["ann"], "edited": False}, Approved(1, ("ann",), False)),
        ({"verdict": "approve", "by": ["ann"], "edited": True, "value": 2}, Approved(2, ("ann",), True)),
        ({"verdict": "reject", "by": ["ann"], "reason": "no"}, Rejected("no", ("ann",))),
        ({"verdict": "escalate", "by": ["ann"], "to": "cto"}, Escalated("cto")),
        ({"verdict": "take_over", "by": ["ann"], "value": 3}, TakenOver(3, ("ann",))),
        ({"verdict": "expire", "by": []}, Expired()),
    ],
)  # fmt: skip
def test_a_verdict_is_read_from_its_codes(said, verdict):
    call = GateCall(7, "ship", None, codec=codec_for(int), request="1", value=1, terms=GateTerms())
    assert call.decode(unit(Kind.GATE_ANSWERED, said)) == (verdict, None)


def test_an_edit_that_does_not_fit_is_an_error_and_no_verdict():
    call = GateCall(7, "ship", None, codec=codec_for(int), request="1", value=1, terms=GateTerms())
    said = {"verdict": "approve", "by": ["ann"], "edited": True, "value": "x"}
    value, error = call.decode(unit(Kind.GATE_ANSWERED, said))
    assert value is None
    assert isinstance(error, NotStorable)


def test_a_call_says_what_it_wants_next():
    step = StepCall(7, "ship", None, spec=spec())
    assert step.ask() == Want.LICENCE
    step.is_licensed = True
    assert step.ask() == Want.BODY
    step.read(unit(Kind.ATTEMPT_FAILED, due_us=5))
    assert (step.ask(), step.come_due()) == (Want.LATER, Want.BODY)
    assert StepCall(7, "ship", None, spec=spec(), carried="1").ask() == Want.RESULT
    assert StepCall(7, "ship", None, spec=spec(StepKind.READ)).ask() == Want.BODY
    child = ChildCall(7, "ship", None, request=CHILD, result=ANYTHING, errors=ErrorClasses())
    assert child.ask() == Want.CHILD
    child.read(unit(Kind.CHILD_STARTED, {"run_id": 9}))
    assert child.ask() == Want.LOOK


def admitted(effect: Any = "s", terms: EffectTerms | None = None) -> StepSpec:
    asking = spec(effect, terms)
    asking.admit = Admission({"usd": "0.5", "calls": "1"}, None)
    return asking


def test_a_call_asks_its_pool_once_before_it_does_anything_else():
    step = StepCall(7, "ship", None, spec=admitted())
    assert step.ask() == Want.ADMISSION
    step.read(unit(Kind.BUDGET_ADMITTED, {"pool": "p", "amounts": {"usd": 0.5}}))
    assert step.ask() == Want.BODY, "the licence came with it"
    step.read(unit(Kind.ATTEMPT_FAILED, due_us=5))
    assert step.ask() == Want.LATER
    act = EffectCall(7, "ship", None, spec=admitted("e", TERMS))
    assert act.ask() == Want.ADMISSION
    act.read(unit(Kind.BUDGET_ADMITTED, {"pool": "p", "amounts": {}}))
    assert act.ask() == Want.LEAVE
    assert StepCall(7, "ship", None, spec=spec(), is_under_hard_pool=True).ask() == Want.ADMISSION


def test_what_a_try_has_spent_is_told_once_by_model():
    step = StepCall(7, "ship", None, spec=admitted(), began_us=1_000_000)
    step.admitted = {"usd": "0.5", "calls": "1", "seconds": "9"}
    step.charges = [Spent({"usd": "0.1"}, "m1"), Spent({"usd": "0.2", "tokens": "5"}, "m1")]
    assert step.take_charges(3_500_000) == [
        Spent({"usd": "0.3", "tokens": "5", "calls": "1", "seconds": "2.500000"}, "m1")
    ]
    assert step.take_charges(4_000_000) == []


def test_an_effect_wants_what_its_stage_allows():
    call = effect()
    assert call.ask() == Want.LEAVE
    call.read(unit(Kind.EFFECT_INTENDED, {}, at_us=5))
    assert (call.ask(), call.is_acting, call.may_have_acted, call.attempted_us) == (
        Want.LOST, True, False, 5,
    )  # fmt: skip
    call.doubt(Unknown.RAISED)
    assert (call.ask(), call.stage, call.ground) == (Want.LEAVE, EffectStage.REPEATABLE, "w")
    call.read(unit(Kind.EFFECT_ATTEMPTED, {"ground": "w"}))
    assert (call.is_acting, call.may_have_acted, call.attempts, call.asks) == (True, True, 2, 1)
    call.doubt(Unknown.KEY_EXPIRED)
    assert call.ask() == Want.BODY  # the counterparty is asked
    assert not call.is_acting
    call.read(unit(Kind.EFFECT_UNKNOWN, {"reason": Unknown.ABSENT_WITHOUT_KEY}))
    assert call.ask() == Want.PERSON
    call.grant_fresh_budget()
    assert call.stage == EffectStage.UNKNOWN


def test_what_takes_an_accepted_effect_back_follows_it():
    accepted = effect(stage=EffectStage.ACCEPTED)
    follower = effect(takes_back=accepted)
    assert follower.ask() == Want.FOLLOW
    accepted.settle("failed")
    assert follower.ask() == Want.NEEDLESS
    assert effect(takes_back=effect(stage=EffectStage.KEPT)).ask() == Want.LEAVE


@pytest.mark.parametrize("stage", sorted(CLOSED - {EffectStage.ACCEPTED, EffectStage.SILENT}))
def test_what_is_closed_stays_as_it_is(stage):
    for event in _MOVES:
        call = effect(stage=stage)
        with pytest.raises(
            ImpossibleMove, match=f"call 7: effect 'ship': {event} comes when it is {stage}"
        ):
            call._move(event)
        assert call.stage == stage


def test_every_stage_but_the_first_can_be_reached_and_every_event_comes_somewhere():
    stages = {value for name, value in vars(EffectStage).items() if name.isupper()}
    found = {to for moves in _MOVES.values() for to in moves.values()}
    assert found == stages - {EffectStage.ASKED}
    assert set(_MOVES) == {value for name, value in vars(EffectEvent).items() if name.isupper()}
    assert {stage for moves in _MOVES.values() for stage in moves} <= stages


MARKS_AFTER_AN_ACCEPTANCE = {
    "nothing": [],
    "silent": [(Kind.EFFECT_UNKNOWN, {"reason": Unknown.SILENT, "details": 1})],
    "silent and asked after": [
        (Kind.EFFECT_UNKNOWN, {"reason": Unknown.SILENT, "details": 1}), (Kind.EFFECT_UNKNOWN, {"reason": Unknown.STILL_UNKNOWN}),
    ],
    "heard of": [
        (Kind.EFFECT_UNKNOWN, {"reason": Unknown.SILENT, "details": 1}), (Kind.EFFECT_UNKNOWN, {"reason": Unknown.ACCEPTED}),
    ],
    "confirmed": [(Kind.EFFECT_SETTLED, {"verdict": "confirmed", "by": "settle"})],
    "confirmed by somebody": [(Kind.EFFECT_SETTLED, {"verdict": "confirmed", "by": "ann", "word": True})],
    "failed": [(Kind.EFFECT_SETTLED, {"verdict": "failed", "by": "ann", "word": True})],
    "silent, then failed": [
        (Kind.EFFECT_UNKNOWN, {"reason": Unknown.SILENT, "details": 1}), (Kind.EFFECT_SETTLED, {"verdict": "failed", "by": "settle"}),
    ],
}  # fmt: skip


@pytest.mark.parametrize("marks", MARKS_AFTER_AN_ACCEPTANCE)
def test_marks_say_the_same_before_and_after_the_acceptance_is_released(marks):
    read_late, read_early = effect(), effect()
    for call in (read_late, read_early):
        call.read(unit(Kind.EFFECT_INTENDED, {}))
    read_late.close(Accepted("ref"), None)
    for kind, said in MARKS_AFTER_AN_ACCEPTANCE[marks]:
        assert read_late.read(unit(kind, said))
        assert read_early.read(unit(kind, said))
    assert not read_early.was_accepted
    read_early.close(Accepted("ref"), None)
    assert (read_early.stage, read_early.asks, read_early.ground) == (
        read_late.stage,
        read_late.asks,
        read_late.ground,
    )
    assert read_early.was_accepted


def test_a_sign_of_an_accepted_effect_ends_the_wait_to_ask_after_it():
    call = effect()
    call.read(unit(Kind.EFFECT_INTENDED, {}))
    call.close(Accepted("ref"), None)
    call.read(unit(Kind.EFFECT_UNKNOWN, {"reason": Unknown.SILENT, "details": 1}, due_us=5))
    assert (call.stage, call.retry_due_us) == (EffectStage.SILENT, 5)
    call.read(unit(Kind.EFFECT_UNKNOWN, {"reason": Unknown.ACCEPTED}))
    assert (call.stage, call.retry_due_us) == (EffectStage.ACCEPTED, None)


def test_a_word_that_cannot_be_read_says_that_it_was_done():
    call = effect()
    call.read(unit(Kind.EFFECT_INTENDED, {}))
    call.doubt(Unknown.RAISED)
    call.read(unit(Kind.EFFECT_SETTLED, {"verdict": "confirmed", "by": "ann", "word": True}))
    call.close("seven", NotStorable("no number"))
    assert (call.stage, call.is_in_place) == (EffectStage.CONFIRMED, True)


def test_a_mark_of_another_name_is_of_another_call():
    assert not effect().read(unit(Kind.EFFECT_INTENDED, {}, name="sail"))
    assert not CALLS["step"][0].read(unit(Kind.EFFECT_INTENDED, {}))
    assert not CALLS["child"][0].read(unit(Kind.ATTEMPT_FAILED))


@pytest.mark.parametrize("sort", ["timer", "signal", "hold"])
def test_a_call_without_marks_takes_none(sort):
    kinds = [value for name, value in vars(Kind).items() if name.isupper()]
    assert not any(CALLS[sort][0].read(unit(kind)) for kind in kinds)
