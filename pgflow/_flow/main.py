"""The code of a run, ready to be driven."""

from __future__ import annotations

import contextvars
from collections.abc import Sequence
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


def make_main(
    scope: WorkflowScope, workflow: Workflow[..., Any], interceptors: Sequence[Interceptor]
) -> Any:
    """The workflow's function with its stored input, inside the interceptors' contexts; the
    outermost saga.
    """
    return partial(_main_async if workflow.is_async else _main_sync, scope, workflow, interceptors)


# The saga is outermost: an input that cannot be read, or an interceptor, may end a run that has
# something to take back.
async def _main_async(
    scope: WorkflowScope, workflow: Workflow[..., Any], interceptors: Sequence[Interceptor]
) -> Any:
    return await guarded(scope, partial(_inner_async, scope, workflow, interceptors))


async def _inner_async(
    scope: WorkflowScope, workflow: Workflow[..., Any], interceptors: Sequence[Interceptor]
) -> Any:
    args, kwargs = workflow.bind_input(scope.execution.claim.input)
    if not interceptors:
        return await workflow.fn(*args, **kwargs)
    with around(interceptors, "around_workflow", run_info()):
        return await guarded(scope, partial(workflow.fn, *args, **kwargs))


def _main_sync(
    scope: WorkflowScope, workflow: Workflow[..., Any], interceptors: Sequence[Interceptor]
) -> Any:
    return guarded_sync(scope, partial(_inner_sync, scope, workflow, interceptors))


def _inner_sync(
    scope: WorkflowScope, workflow: Workflow[..., Any], interceptors: Sequence[Interceptor]
) -> Any:
    args, kwargs = workflow.bind_input(scope.execution.claim.input)
    if not interceptors:
        return workflow.fn(*args, **kwargs)
    with around(interceptors, "around_workflow", run_info()):
        return guarded_sync(scope, partial(workflow.fn, *args, **kwargs))


def make_driver(
    execution: Execution,
    workflow: Workflow[..., Any],
    errors: tuple[type[Exception], ...],
    interceptors: Sequence[Interceptor],
    spawn: Any,
    yield_control: Any,
    *,
    is_check: bool = False,
) -> Driver:
    """Return the driver of a workflow's code, with its scope in a context of its own."""
    effects = carried_effects(execution.claim.saga)
    scope = WorkflowScope(
        execution, errors, workflow, is_check=is_check, interceptors=interceptors, effects=effects
    )
    context = contextvars.Context()
    context.run(current.set, scope)
    main = make_main(scope, workflow, interceptors)
    if workflow.is_async:
        return CoroutineDriver(execution, main, context)
    scope.thread = ThreadDriver(spawn, yield_control, main, context)
    return scope.thread
