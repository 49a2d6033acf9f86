# Made by tools/colours.py from pgflow/agent/_async_loop.py; edit that one.
"""The loop of an agent: observe, decide, gate, verify, act, fold, judge, compensate.

All of its state is in the run, none in a process. A decision is sampled once, and the acts that
rest on it name it; an act that dies on the way is settled and not repeated; a person may answer
days later; and spending draws on the pool of the run. After some turns the run continues as a new
generation with its state, where the next decision would be made. So a journal stays short however
long the agent lives, and earlier acts are still compensated if the goal is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from pgflow import Step, because, continue_as_new
from pgflow.agent.blocks import saga
from pgflow.agent.outcome import (
    Declined,
    How,
    NotGood,
    Outcome,
    act_operation,
    agent_operation,
    check_next,
    check_turns,
    declined,
    verdict_of,
)
from pgflow.authority import Approved, Rejected, TakenOver, Verdict
from pgflow.decisions import Decision
from pgflow.errors import BudgetExceeded, Diverged, GateRejected, Stale

G = TypeVar("G")
S = TypeVar("S")
O = TypeVar("O")  # noqa: E741 - what is observed
A = TypeVar("A")
R = TypeVar("R")


def loop(
    goal: G,
    state: S,
    *,
    observe: Callable[[G, S], O],
    decide: Callable[[G, S, O], Decision[A | None]],
    act: Callable[[A], R],
    fold: Callable[[S, A, R], S],
    done: Callable[[S], bool] | None = None,
    gate: Callable[[A], Verdict[A]] | None = None,
    decline: Callable[[S, A, Verdict[A]], S] | None = None,
    oracle: Callable[[G, S], bool | None] | None = None,
    grade: Callable[[G, S], Decision[float]] | None = None,
    sure: float = 0.8,
    review: Callable[[G, S], Verdict[Any]] | None = None,
    ends: Sequence[type[Exception]] = (),
    planner: Step[[Any], Decision[Any]] | None = None,
    steps: Sequence[Step[..., Any]] = (),
    turns: int = 100,
    is_long: Callable[[S], bool] | None = None,
    compact: Callable[[G, S], S] | None = None,
) -> Outcome[S]:
    """Repeat turns until the goal is reached, judge the result, and compensate everything if it is
    missed.

    The workflow that calls it takes the goal and the state, in this order: it is continued as new
    with both. A run has one goal, since everything that it did is one saga.

    All functions are code of the workflow. Parts that touch the world are steps; most often you
    pass the step itself.

    Args:
        goal: The goal.
        state: The state to begin with.
        observe: Looks at the world, fresh in every turn.
        decide: A ``@decision`` over goal, state and observation, perhaps with ``.options(admit=)``.
            If it chooses None, there is nothing more to do.
        act: Does what was chosen: an ``@effect``, or a function that calls some. If its
            precondition does not hold (Stale, Diverged), its acts so far in this turn are
            compensated, and the next turn looks and decides again.
        fold: Makes the next state of state, action and result. It may call ``pgflow.set_state``.
        done: Returns True if there is nothing more to do. Without it only ``decide`` ends the
            turns.
        gate: Asks for approval; without it everything may happen that the policy allows. What is
            done is the value as approved or edited, or what a person did by hand.
        decline: Makes the next state after an act was not approved, here or at a gate of the
            policy. Without it the agent ends, and everything is compensated.
        oracle: Knows if the goal is reached: True, False, or None if it cannot decide. Its answer
            is final.
        grade: A ``@decision`` of a model, how sure it is that the goal is reached. It is asked if
            no oracle knows.
        sure: Grade from which on the model's answer is enough.
        review: Asks a person if the model is not sure. A rejection compensates everything. Without
            an answer, the outcome is ``needs review``, and nothing is compensated.
        ends: Errors, beside BudgetExceeded, after which everything is compensated and the outcome
            is ``compensated``. After all others the run fails, and compensates the same.
        planner: As of :func:`pgflow.effects.saga`.
        steps: As of :func:`pgflow.effects.saga`.
        turns: Turns of a generation; then the run continues as new.
        is_long: Returns True if the state has grown so long that it must be compacted at once.
        compact: Makes the state shorter, before the run continues as new: such as a step that has a
            model write a summary. Earlier generations keep the full state.

    Returns:
        The end, with the state.

    Raises:
        InvalidArgument: A generation has no turn.
        DefinitionError: The workflow does not take goal and state.

    Example::

        @workflow
        async def restock(goal: Goal, state: State | None = None) -> Outcome[State]:
            return await pgflow.agent.loop(
                goal,
                state or State(goal.pieces),
                observe=price_of,
                decide=choose.options(admit=Admit(usd=Decimal("0.04"))),
                act=place,
                fold=State.add,
                oracle=is_full,
            )
    """
    check_turns(turns)
    check_next(goal, state)
    missed: tuple[type[Exception], ...] = (NotGood, Declined, BudgetExceeded, *ends)
    turn = 0
    with agent_operation():
        try:
            with saga(
                goal=repr(goal) if planner is not None else None,
                planner=planner,
                steps=steps,
                inherits=True,
            ):
                while done is None or not done(state):
                    # Between two decisions, nothing is under way.
                    if turn == turns or (turn and is_long is not None and is_long(state)):
                        if compact is not None:
                            state = compact(goal, state)
                        continue_as_new(goal, state)
                    turn += 1
                    seen = observe(goal, state)
                    chosen = decide(goal, state, seen)
                    action = chosen.value
                    if action is None:
                        break
                    with because(chosen):
                        state, did = _approved_and_acted(state, action, gate, act, decline)
                    if did is not None:
                        state = fold(state, *did)
                how = _judge(goal, state, oracle, grade, sure, review)
        except missed as error:
            return Outcome("compensated", state, type(error).__name__)
        return Outcome(how, state)


def _approved_and_acted(
    state: S,
    action: A,
    gate: Callable[[A], Verdict[A]] | None,
    act: Callable[[A], R],
    decline: Callable[[S, A, Verdict[A]], S] | None,
) -> tuple[S, tuple[A, R] | None]:
    """Ask for approval of an action, and do it. Return the state, and the action as it was done
    with its result; None if it was declined, or the world had changed.
    """
    verdict: Verdict[A] = Approved(action)
    try:
        if gate is not None:
            verdict = gate(action)
        if isinstance(verdict, Approved):
            action = verdict.value
            with saga():  # an act of several effects is one
                return state, (action, _acted(act, action))
        if isinstance(verdict, TakenOver):
            return state, (action, verdict.result)
    except (Stale, Diverged):
        return state, None
    except GateRejected as refusal:
        return declined(decline, state, action, verdict_of(refusal)), None
    return declined(decline, state, action, verdict), None


def _acted(act: Callable[[A], R], action: A) -> R:
    with act_operation(act):
        return act(action)


def _judge(
    goal: G,
    state: S,
    oracle: Callable[[G, S], bool | None] | None,
    grade: Callable[[G, S], Decision[float]] | None,
    sure: float,
    review: Callable[[G, S], Verdict[Any]] | None,
) -> How:
    """Ask an oracle, else a model that is sure, else a person.

    Raises:
        NotGood: Their answer is no.
    """
    if oracle is not None:
        is_good = oracle(goal, state)
        if is_good is False:
            raise NotGood
        if is_good:
            return "good"
    if grade is None:
        if review is not None:
            return _reviewed(goal, state, review)
        return "good" if oracle is None else "needs review"
    graded = grade(goal, state)
    if graded.value >= sure:
        return "good"
    if review is None:
        return "needs review"
    with because(graded):
        return _reviewed(goal, state, review)


def _reviewed(goal: G, state: S, review: Callable[[G, S], Verdict[Any]]) -> How:
    verdict = review(goal, state)
    if isinstance(verdict, (Approved, TakenOver)):
        return "good"
    if isinstance(verdict, Rejected):
        raise NotGood
    return "needs review"  # no person looked, and a guess is not a reason to undo
