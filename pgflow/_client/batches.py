"""Parts of a batch before it is sent: the run that begins when it is over, and its members, some
thousands in a transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from pgflow._client.starts import batch_of, new_keys, start_query, stored_input
from pgflow._db.calls import batches
from pgflow._db.calls.start import Started
from pgflow._db.query import Query, Steps
from pgflow._flow.interceptor import Interceptor
from pgflow._flow.workflow import Workflow, check_workflow
from pgflow._model.envelopes import Envelopes
from pgflow._model.options import StartOptions
from pgflow.errors import InvalidArgument

PART = 5000
"""Members in a transaction."""


@dataclass(frozen=True)
class BatchPart:
    """Some members of a batch.

    Attributes:
        callback: Start of the run that waits for them; each part finds it again.
        name: Name of its workflow.
        members: Start of the members; None if there are none.
        is_last: True if the batch is whole then.
        on_failure: Has a run begin with the first failure; None if none shall.
    """

    callback: Query[Started]
    name: str
    members: Query[list[Started]] | None
    is_last: bool
    on_failure: Query[None] | None = None

    def statements(self, idle_timeout_ms: int) -> Steps[tuple[Started, list[Started]]]:
        """Statements of its transaction: they return the waiting run and the members."""
        del idle_timeout_ms  # no other session waits for these locks
        waits: Started = yield self.callback
        members: list[Started] = [] if self.members is None else (yield self.members)
        ids = [member.chain_id for member in members]
        yield batches.fill_batch(waits.key, self.name, ids, is_whole=self.is_last)
        if self.on_failure is not None:
            yield self.on_failure
        return waits, members


def parts_of(
    workflow: Workflow[..., Any],
    inputs: Iterable[tuple[Any, ...]],
    then: Workflow[..., Any],
    args: tuple[Any, ...],
    keys: Iterable[str] | None,
    interceptors: Sequence[Interceptor],
    envelopes: Envelopes | None,
    on_failure: tuple[Workflow[..., Any], tuple[Any, ...]] | None = None,
) -> Iterator[BatchPart]:
    """Yield the parts of a batch, each made when the one before has been sent.

    Raises:
        InvalidArgument: The run that waits has options that say when it begins.
    """
    check_workflow(workflow, "start_batch()")
    check_workflow(then, "then= of start_batch()")
    options = then.start_options
    begins_itself = options.times_key or options.run_at is not None or options.is_placed
    if begins_itself or options.if_taken != "match":
        raise InvalidArgument(
            "then= begins when its batch is over, and on its node: it takes no run_at=, node=, "
            "near=, if_taken=, key_for=, debounce= or collect="
        )
    key = options.key or new_keys(1)[0]
    callback = start_query(then.options(key=key), args, {}, interceptors, envelopes)
    failure = None if on_failure is None else _failure_query(key, *on_failure, envelopes)
    member = workflow.options(labels={"batch": key, **workflow.start_options.labels})
    given = iter(inputs)
    named = None if keys is None else iter(keys)
    count = 0
    part = list(islice(given, PART))
    while True:
        following = list(islice(given, PART))
        of_part = (
            [f"{key}/{n}" for n in range(count, count + len(part))]
            if named is None
            else list(islice(named, len(part)))
        )
        count += len(part)
        batch = batch_of(member, part, of_part, interceptors, envelopes)
        batch.options.refuse_place("start_batch()")
        starts = batch.statements(again=False)
        members = starts[0]() if starts else None
        yield BatchPart(callback, then.name, members, not following, failure)
        if not following:
            return
        part = following


def _failure_query(
    key: str, workflow: Workflow[..., Any], args: tuple[Any, ...], envelopes: Envelopes | None
) -> Query[None]:
    """Start a run of this workflow at the first failure."""
    check_workflow(workflow, "on_failure= of start_batch()")
    workflow.check_definition()
    options = workflow.start_options
    if options != StartOptions(queue=options.queue):
        raise InvalidArgument(
            "on_failure= begins with a failure, and the batch names it: of its options it takes "
            "queue= only"
        )
    text = stored_input(workflow, args, {}, f"{key}/failed", envelopes)
    return batches.on_batch_failure(key, workflow.name, text, options.queue)


__all__ = ["BatchPart", "parts_of"]
