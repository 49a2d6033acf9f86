"""Parts of a start before it is sent: its key, its options, and the batches of
:meth:`pgflow.App.start_many`.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pgflow._client.values import UNCHANGED, stored_edit, stored_new_input, stored_value
from pgflow._db.calls import fork, start
from pgflow._db.query import Query
from pgflow._flow.interceptor import Interceptor
from pgflow._flow.scope import current
from pgflow._flow.workflow import Workflow, check_workflow
from pgflow._model.envelopes import Envelopes, is_hiding, seal_metadata
from pgflow._model.options import NO_CLUSTER, StartOptions
from pgflow.errors import DefinitionError, InvalidArgument

RUNS_A_STATEMENT = 125
"""Runs in a statement of a batch whose keys are made up. By measurement, of 500 runs: 63 to 250 are
within a tenth, all 500 in one take 1.1 times as long.
"""


def new_keys(count: int) -> list[str]:
    """Return UUIDs of version 7 (RFC 9562, 5.7), each greater than the one before.

    Behind the milliseconds 24 bits count up from a random number (RFC 9562, 6.2, method 1); 48 more
    are random in each. Keys are made here, so that a start whose answer was lost can be sent again
    under its key.
    """
    milliseconds = f"{time.time_ns() // 1_000_000:012x}"
    random = os.urandom(6 * count + 4).hex()
    seed = int(random[-8:], 16)
    head, variant, first = f"{milliseconds[:8]}-{milliseconds[8:]}-7", "89ab"[seed & 3], seed >> 9
    return [
        f"{head}{n >> 12 & 0xFFF:03x}-{variant}{n & 0xFFF:03x}-{random[at : at + 12]}"
        for n, at in zip(range(first, first + count), range(0, 12 * count, 12), strict=True)
    ]


def effective_options(
    workflow: Workflow[..., Any], interceptors: Iterable[Interceptor]
) -> StartOptions:
    """Options of a start as the interceptors leave them."""
    options: StartOptions = workflow.start_options
    for interceptor in interceptors:
        options = interceptor.start(workflow.name, options)
    scope = current.get()
    if scope is not None and scope.claim.metadata:
        options = replace(options, metadata={**scope.claim.metadata, **options.metadata})
    return options


def stored_options(options: StartOptions, envelopes: Envelopes | None) -> StartOptions:
    """Options of a start as they are stored."""
    if not options.metadata:
        return options
    return replace(options, metadata=seal_metadata(envelopes, options.metadata) or {})


def stored_input(
    workflow: Workflow[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    key: str | None,
    envelopes: Envelopes | None,
) -> str:
    """The input of a start as it is stored: the same for the same key and arguments, as far as the
    database compares it.
    """
    text = workflow.encode_input(args, kwargs, is_hidden=is_hiding(envelopes))
    if envelopes is None:
        return text
    return envelopes.seal_compared(
        text, f"the input of workflow {workflow.name}", key or "", workflow.defaults_text
    )


def stored_defaults(workflow: Workflow[..., Any], envelopes: Envelopes | None) -> str | None:
    """Return the defaults that count for parameters that an input leaves out; the hash of an
    encoded input is made with them.
    """
    if envelopes is not None and envelopes.is_writing:
        return None
    return workflow.defaults_text or "{}"  # known code: the database does not judge its input


def start_query(
    workflow: Workflow[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    interceptors: Iterable[Interceptor],
    envelopes: Envelopes | None,
) -> start.StartQuery:
    """Return the query that starts one run. It always has a key, so that it can be sent again."""
    if not isinstance(workflow, Workflow):
        check_workflow(workflow, "start()")
    workflow.check_definition()
    options = stored_options(effective_options(workflow, interceptors), envelopes)
    if options.collect is not None and envelopes is not None and envelopes.is_writing:
        raise InvalidArgument(
            "collect= joins inputs in the database, where a codec has made them unreadable"
        )
    text = stored_input(workflow, args, kwargs, options.key, envelopes)
    if options.key is None:
        if options.if_taken != "match":
            raise InvalidArgument(f"if_taken={options.if_taken!r} requires options(key=...)")
        if options.times_key:
            raise InvalidArgument(
                "key_for=, debounce=, max_wait= and collect= require options(key=...)"
            )
        return start.start_run(workflow.name, text, new_keys(1)[0], options, defaults="{}")
    return start.start_run(
        workflow.name,
        text,
        options.key,
        options,
        defaults=stored_defaults(workflow, envelopes),
        start_id=start_id_of(options),
    )


@dataclass(frozen=True)
class StartedRun:
    """A run that exists, by this start or by an earlier one with the same key.

    Attributes:
        key: Its key.
        is_new: True if this start made it.
        has_replaced: True if another run had the key, and is cancelled first.
    """

    key: str
    is_new: bool
    has_replaced: bool


def named_start_query(
    workflow: str,
    arguments: dict[str, Any],
    options: StartOptions,
    defaults: str | None,
    envelopes: Envelopes | None,
) -> start.StartQuery:
    """Return the query that starts one run of a workflow by its name."""
    key = options.key or new_keys(1)[0]
    text = stored_value(envelopes, arguments, f"the input of workflow {workflow}", key)
    return start.start_run(
        workflow,
        text,
        key,
        stored_options(options, envelopes),
        defaults=None if envelopes is not None and envelopes.is_writing else defaults,
        start_id=start_id_of(options),
    )


def fork_query(
    envelopes: Envelopes | None, key: str, new_key: str | None, options: fork.ForkOptions
) -> Query[start.Started]:
    """Return the query that starts a run with the journal of another. A key is made if none is
    given.
    """
    named = new_key or new_keys(1)[0]
    edit = stored_edit(envelopes, options.get("edit", UNCHANGED), named)
    return fork.fork_run(
        key, named, edit, stored_new_input(envelopes, options.get("input"), named), options
    )


@dataclass(frozen=True)
class Batch:
    """Starts of one workflow that share all but key and input: all of them happen, or none."""

    workflow: Workflow[..., Any]
    options: StartOptions
    keys: Sequence[str]
    inputs: Sequence[tuple[Any, ...]]
    is_made_up: bool
    """True if pgflow made its keys up."""
    start_id: str | None = None
    """Id by which a repeated batch recognises its own runs among others of the key."""
    envelopes: Envelopes | None = None
    """Those of the app."""

    def statements(self, *, again: bool) -> list[Callable[[], Query[list[start.Started]]]]:
        """Return functions that make the statements which start them. Keys of the caller's go in
        one, since they are taken in their order.

        Args:
            again: The answer to all of this was lost: it may have happened.
        """
        size = RUNS_A_STATEMENT if self.is_made_up else max(1, len(self.inputs))
        is_new = self.is_made_up and not again
        return [
            partial(self._statement, slice(first, first + size), is_new)
            for first in range(0, len(self.inputs), size)
        ]

    def _statement(self, part: slice, is_new: bool) -> Query[list[start.Started]]:
        defaults = stored_defaults(self.workflow, self.envelopes)
        pairs = zip(self.keys[part], self.inputs[part], strict=True)
        runs = [
            (key, stored_input(self.workflow, args, {}, key, self.envelopes)) for key, args in pairs
        ]
        return start.start_runs(
            self.workflow.name,
            runs,
            self.options,
            keys_are_new=is_new,
            defaults=defaults,
            start_id=self.start_id,
        )


def batch_of(
    workflow: Workflow[..., Any],
    inputs: Iterable[tuple[Any, ...]],
    keys: Sequence[str] | None,
    interceptors: Sequence[Interceptor],
    envelopes: Envelopes | None,
) -> Batch:
    """A batch of starts.

    Raises:
        DefinitionError: A key is among the workflow's options, or it cannot be started at all.
        InvalidArgument: There are more or fewer keys than inputs, or an input is not a tuple.
    """
    check_workflow(workflow, "start_many()")
    if workflow.start_options.key is not None:
        raise DefinitionError(
            "start_many() starts runs of different inputs: they cannot share options(key=...), "
            "pass keys=[...]"
        )
    workflow.check_definition()
    given = list(inputs)
    for place, arguments in enumerate(given):
        if not isinstance(arguments, tuple):
            raise InvalidArgument(
                f"start_many() takes a tuple of arguments for each run; input {place} is "
                f"{type(arguments).__name__}: put it into a tuple, (x,)"
            )
    if keys is not None and len(keys) != len(given):
        raise InvalidArgument(f"start_many() was given {len(given)} inputs and {len(keys)} keys")
    named = new_keys(len(given)) if keys is None else keys
    options = stored_options(effective_options(workflow, interceptors), envelopes)
    if options.collect is not None:
        raise InvalidArgument("start_many() cannot collect: start one run with all items")
    if options.debounce is not None or options.max_wait is not None:
        raise InvalidArgument("start_many() cannot debounce: start the runs one by one")
    if options.key_for is not None and keys is None:
        raise InvalidArgument("key_for= requires keys=[...]")
    return Batch(workflow, options, named, given, keys is None, start_id_of(options), envelopes)


def start_id_of(options: StartOptions) -> str | None:
    """Return a new id for a start that has to recognise its own run among others of the key, or
    None.
    """
    if options.times_key or options.if_taken in ("reject", "replace"):
        return str(uuid.uuid4())
    return None


__all__ = ["NO_CLUSTER", "Batch", "batch_of", "fork_query", "new_keys", "start_query"]
