"""The code of a run, ready to be driven."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pgflow._engine.drivers import CoroutineDriver, Driver, ThreadDriver
from pgflow._engine.execution import Execution
from pgflow._flow.interceptor import Interceptor, around
from pgflow._flow.ledgers.handover import carried_effects
from pgflow._flow.ledgers.saga import guarded, guarded_sync
from pgflow._flow.run_info import run_info
from pgflow._flow.scope import WorkflowScope, current
from pgflow._flow.workflow import Workflow


def begin(
    scope: WorkflowScope, workflow: Workflow[..., Any], interceptors: Sequence[Interceptor]
) -> Any:
    """Call a workflow's function with its stored input, inside the interceptors' contexts: the
    result of a ``def``, the coroutine of an ``async def``, which is awaited without another around
    it.
    """
    args, kwargs = workflow.bind_input(scope.execution.claim.input)
    if not interceptors:
        return workflow.fn(*args, **kwargs)
    main = partial(workflow.fn, *args, **kwargs)
    return (_inside if workflow.is_async else _inside_sync)(scope, interceptors, main)


async def _inside(
    scope: WorkflowScope, interceptors: Sequence[Interceptor], main: partial[Any]
) -> Any:
    with around(interceptors, "around_workflow", run_info()):
        return await guarded(scope, main)


def _inside_sync(
    scope: WorkflowScope, interceptors: Sequence[Interceptor], main: partial[Any]
) -> Any:
    with around(interceptors, "around_workflow", run_info()):
        return guarded_sync(scope, main)


def make_driver(
    execution: Execution,
    workflow: Workflow[..., Any],
    errors: tuple[type[Exception], ...],
    interceptors: Sequence[Interceptor],
    spawn: Any,
    yield_control: Callable[[Execution], None],
    *,
    is_check: bool = False,
) -> Driver:
    """Return the driver of a workflow's code, with its scope in a context of its own.

    Args:
        execution: The execution.
        workflow: The workflow.
        errors: Classes as which errors may be rebuilt.
        interceptors: They are around the code.
        spawn: Runs the code of a sync workflow in a thread.
        yield_control: Called in that thread with the execution, each time that its code waits.
        is_check: True to replay a recorded run only to see if the code repeats it.
    """
    effects = carried_effects(execution.claim.saga) if execution.claim.saga else []
    scope = WorkflowScope(
        execution, errors, workflow, is_check=is_check, interceptors=interceptors, effects=effects
    )
    context = contextvars.Context()
    context.run(current.set, scope)
    # The saga is outermost: an input that cannot be read, or an interceptor, may end a run that has
    # something to take back. One partial: a nested one is three more objects of a run for the
    # garbage collector.
    guard = guarded if workflow.is_async else guarded_sync
    main = partial(guard, scope, begin, scope, workflow, interceptors)
    if workflow.is_async:
        return CoroutineDriver(execution, main, context)
    scope.thread = ThreadDriver(spawn, partial(yield_control, execution), main, context)
    return scope.thread
