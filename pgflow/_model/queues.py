"""Rules of queues: limits, rates and order, as they are set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypedDict, Unpack

from pgflow._model.durations import SHORTEST, Duration, duration, in_short
from pgflow.errors import InvalidArgument

Rate = str | tuple[int, Duration]
"""Most runs that begin in a time: ``"100/1m"``, or ``(100, timedelta(minutes=1))``."""


class QueueRules(TypedDict, total=False):
    """Rules of a queue. One that is not named stays as it is, and None takes it away.

    Attributes:
        concurrency: Most runs that all workers together hold at once.
        per_worker: Most runs that one worker holds at once.
        key: Expression for the key of a run: parts of the input, labels, the tenant or the
            workflow, such as ``input.customer.id`` or ``tenant, labels.region``.
        per_key: Most runs of one key that are held at once.
        fifo: True to begin a run only once those before it of its key have ended.
        rate: Most runs that begin, such as ``"100/1m"`` or ``(100, timedelta(minutes=1))``: no
            window of that length has more.
        burst: Size of a bucket that fills at the rate; no windows are counted then.
        key_rate: The same for each key.
        key_burst: Size of the bucket of each key.
        ageing: Waiting that is worth one step of priority; priorities are strict without.
        weights: Runs in a turn, by key; 1 for a key that is not named.
        expires: Time after which a run that has not begun is cancelled.
        closed: True to take no new runs: starts are refused, and what is there goes on.
        max_deaths: Number of workers that may die over a run before it is stuck; 5 if it is not
            set.
    """

    concurrency: int | None
    per_worker: int | None
    key: str | None
    per_key: int | None
    fifo: bool | None
    rate: Rate | None
    burst: int | None
    key_rate: Rate | None
    key_burst: int | None
    ageing: Duration | None
    weights: Mapping[str, int] | None
    expires: Duration | None
    closed: bool | None
    max_deaths: int | None


class QueueRule(NamedTuple):
    """A rule of queues, as a person sets it.

    Attributes:
        kind: ``number``, ``text``, ``rate``, ``flag``, ``duration`` or ``weights``.
        help: Its effect, for the field or the option that sets it.
    """

    kind: Literal["number", "text", "rate", "flag", "duration", "weights"]
    help: str


QUEUE_RULES: Mapping[str, QueueRule] = {
    "concurrency": QueueRule("number", "Most runs at once, over all workers."),
    "per_worker": QueueRule("number", "Most runs at once of one worker."),
    "key": QueueRule(
        "text", "Key of a run: parts of input, labels, tenant, workflow, like input.customer."
    ),
    "per_key": QueueRule("number", "Most runs at once of one key."),
    "fifo": QueueRule("flag", "A run begins once those before it of its key have ended."),
    "rate": QueueRule("rate", "Most runs that begin, such as 100/1m."),
    "burst": QueueRule("number", "Size of a bucket that the rate fills."),
    "key_rate": QueueRule("rate", "Most runs of one key that begin."),
    "key_burst": QueueRule("number", "Size of the bucket of each key."),
    "ageing": QueueRule("duration", "Waiting that is worth one step of priority."),
    "expires": QueueRule("duration", "A run that has not begun by then is cancelled."),
    "weights": QueueRule("weights", "Runs of a key in its turn; may be repeated."),
    "closed": QueueRule("flag", "Refuse new runs, while what is there goes on."),
    "max_deaths": QueueRule("number", "After so many dead workers a run is stuck."),
}
"""The rules in the order in which the command line and the console show them."""


class Queue:
    """Rules of a queue, declared by an app and set by its first process.

    A rule changed by hand stays until the declaration changes. A new declaration replaces all
    rules, and removes those it no longer names.

    Args:
        name: Name of the queue.
        **rules: See :class:`QueueRules`.

    Raises:
        InvalidArgument: The name is not valid for a queue, or a rule does not exist.

    Example::

        orders = Queue("orders", key="input.customer", key_rate="20/10s")
        app = App(include=[fulfil], queues=[orders])
    """

    def __init__(self, name: str, **rules: Unpack[QueueRules]) -> None:
        if not isinstance(name, str) or not 1 <= len(name.encode()) <= 255:
            raise InvalidArgument(f"the name of a queue is a text of 1 to 255 bytes, not {name!r}")
        unknown = sorted(rules.keys() - QueueRules.__annotations__.keys())
        if unknown:
            raise InvalidArgument(
                f"queue {name!r}: unknown rule {unknown[0]}; the rules are "
                f"{', '.join(QueueRules.__annotations__)}"
            )
        self.name = name
        self.rules = rules
        self._declared = {"queue": name, "rules": json.loads(rules_json(rules))}

    def __repr__(self) -> str:
        """As in error messages."""
        return f"<Queue {self.name}>"

    def declaration(self) -> dict[str, Any]:
        """Return it as ``declare_queues`` takes it."""
        return self._declared


@dataclass(frozen=True)
class Backlog:
    """Runs of a queue that have not begun.

    Attributes:
        runs: Number of them.
        newest: Highest number among them, which says up to where they are meant; None if there is
            none.
    """

    runs: int
    newest: int | None


def _rate_in_short(rate: Any, what: str) -> str:
    """Return a rate in the form of the database and the command line.

    Raises:
        InvalidArgument: The value is not a rate.
    """
    if isinstance(rate, str):
        return rate
    try:
        count, span = rate
    except (TypeError, ValueError):
        count = None
    if not isinstance(count, int) or isinstance(count, bool):
        raise InvalidArgument(
            f'{what} must be like "100/1m" or (100, timedelta(minutes=1)), not {rate!r}'
        ) from None
    return f"{count}/{in_short(duration(span, f'the time of the {what}', least_seconds=SHORTEST))}"


def rules_json(rules: QueueRules) -> str:
    """Return the rules as the database takes them."""
    declared: dict[str, Any] = dict(rules)
    for name in ("ageing", "expires"):
        if name in declared:
            span = duration(declared.pop(name), f"{name} of a queue")
            declared[f"{name}_seconds"] = None if span is None else span.total_seconds()
    for name in ("rate", "key_rate"):
        if declared.get(name) is not None:
            declared[name] = _rate_in_short(declared[name], f"{name} of a queue")
    if declared.get("weights") is not None:
        declared["weights"] = dict(declared["weights"])
    return json.dumps(declared)
