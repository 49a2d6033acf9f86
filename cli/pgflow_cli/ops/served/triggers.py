"""Triggers of workflow files: the file ``triggers.toml`` beside them.

No dialect of workflow files has words for what starts a run, so pgflow has a file of its own. Each
table of it is a trigger. It names a workflow and one source of events: a schedule, a webhook, a
topic of the outbox or a pattern of files. Everything is checked when it is read, so that a server
which has started can start runs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pgflow.console.output import shown
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.parsing import read_toml

NAME: Final = "triggers.toml"
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_WAY: Final = re.compile(r"\{([^{}]+)\}")
_SHARED: Final = frozenset({"run", "message", "inputs", "take", "provider", "conversation"})
_SCHEDULED: Final = frozenset(
    {"tz", "overlap", "catch_up", "max_catch_up", "jitter", "offset", "not_on", "only_on"}
)
_SOURCES: Final[Mapping[str, frozenset[str]]] = {
    "cron": _SCHEDULED,
    "every": _SCHEDULED,
    "webhook": frozenset({"secret"}),
    "topic": frozenset({"start"}),
    "files": frozenset(),
}
"""Sources of events, each with the keys that only it allows."""
VERIFIERS: Final = ("github", "stripe", "standard")
_DURATIONS: Final = ("every", "offset", "jitter")


@dataclass(frozen=True)
class Trigger:
    """A trigger.

    Attributes:
        name: Its name, with which the keys of its runs begin.
        run: File, folder or name of the workflow.
        source: Kind of its events: ``cron``, ``every``, ``webhook``, ``topic`` or ``files``.
        value: Value of the source in the file.
        options: Further options of the source.
        message: Message of each run; None for the event itself.
        inputs: Inputs of each run.
        take: Inputs that are parts of the event, each with the path to it.
        provider: Provider of its runs, if it is another than that of the server.
        conversation: Conversation that its runs belong to, with paths into the event in braces;
            empty for none.
    """

    name: str
    run: str
    source: str
    value: Any
    options: Mapping[str, Any] = field(default_factory=dict)
    message: str | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    take: Mapping[str, str] = field(default_factory=dict)
    provider: str | None = None
    conversation: str = ""

    @property
    def is_schedule(self) -> bool:
        """True if its events are times."""
        return self.source in ("cron", "every")

    def fill(self, event: Any) -> tuple[str, dict[str, Any]]:
        """Return the message and the inputs of the run of an event.

        Raises:
            LookupError: The event lacks a part that is taken from it.
        """
        taken = {name: _follow(event, way) for name, way in self.take.items()}
        content = event["path"] if self.source == "files" else event
        message = _as_text(content) if self.message is None else self.message
        return message, {**self.inputs, **taken}

    def conversation_of(self, event: Any) -> str:
        """Return the conversation that the run of an event belongs to; empty for none.

        Raises:
            LookupError: The event has not what names it.
        """
        return _WAY.sub(lambda found: _as_text(_follow(event, found[1])), self.conversation)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _follow(event: Any, way: str) -> Any:
    """Return the part of an event at a path such as ``issue.labels.0``."""
    part = event
    for step in way.split("."):
        if isinstance(part, dict) and step in part:
            part = part[step]
        elif isinstance(part, list) and step.isdecimal() and int(step) < len(part):
            part = part[int(step)]
        else:
            raise LookupError(f"the event has no {way}")
    return part


def read_triggers(path: Path) -> list[Trigger]:
    """Return the triggers of a file.

    Raises:
        Mistake: It cannot be read, or a table is not a trigger.
    """
    given = read_toml(path)
    if not given:
        raise Mistake(f"{path} has no triggers: add a table such as [nightly] with run and cron")
    return [_trigger(f"{path}: [{shown(name)}]", name, one) for name, one in given.items()]


def _trigger(place: str, name: str, given: Any) -> Trigger:
    if not _WORD.fullmatch(name):
        raise Mistake(
            f"{place} is not a valid name: use up to 64 letters, digits, '_', '.' and '-'"
        )
    if not isinstance(given, dict):
        raise Mistake(f"{place} is a table with run and one of {', '.join(_SOURCES)}")
    sources = [one for one in _SOURCES if one in given]
    if len(sources) != 1:
        has = " and ".join(sources) or "none"
        raise Mistake(f"{place} needs one of {', '.join(_SOURCES)}; it has {has}")
    source = sources[0]
    known = _SHARED | _SOURCES[source] | {source}
    if unknown := sorted(set(given) - known):
        raise Mistake(
            f"{place} has {unknown[0]!r}, which is unknown: it may have {', '.join(sorted(known))}"
        )
    trigger = Trigger(
        name,
        _text(place, given, "run"),
        source,
        given[source],
        {word: given[word] for word in _SOURCES[source] if word in given},
        _text(place, given, "message") if "message" in given else None,
        _table(place, given, "inputs"),
        _table(place, given, "take"),
        _text(place, given, "provider") if "provider" in given else None,
        _text(place, given, "conversation") if "conversation" in given else "",
    )
    _check(place, trigger)
    return trigger


def _text(place: str, given: Mapping[str, Any], word: str) -> str:
    if not isinstance(given.get(word), str) or (word == "run" and not given[word].strip()):
        raise Mistake(f"{place}: {word} is a text, not {given.get(word)!r}")
    return str(given[word])


def _table(place: str, given: Mapping[str, Any], word: str) -> dict[str, Any]:
    found = given.get(word, {})
    if not isinstance(found, dict):
        raise Mistake(f"{place}: {word} is a table of inputs, not {found!r}")
    try:
        return dict(json.loads(json.dumps(found)))
    except (TypeError, ValueError):
        raise Mistake(f"{place}: {word} has a value that JSON has not, such as a date") from None


def _check(place: str, trigger: Trigger) -> None:
    """Refuse a trigger that could never fire.

    Raises:
        Mistake: It cannot be so.
    """
    for name, way in trigger.take.items():
        if not isinstance(way, str) or not way:
            raise Mistake(f"{place}: take.{name} is a way such as 'issue.number', not {way!r}")
    if both := sorted(set(trigger.take) & set(trigger.inputs)):
        raise Mistake(f"{place}: {both[0]} is both in inputs and in take")
    if trigger.is_schedule:
        if trigger.take or _WAY.search(trigger.conversation):
            raise Mistake(f"{place}: a slot has nothing to take; its run's key names it")
        schedule_of(trigger, place)
    elif trigger.source == "webhook":
        _check_webhook(place, trigger)
    elif not isinstance(trigger.value, str) or not trigger.value:
        raise Mistake(f"{place}: {trigger.source} is a text, not {trigger.value!r}")
    elif trigger.options.get("start", "newest") not in ("oldest", "newest"):
        raise Mistake(f"{place}: start is 'oldest' or 'newest', not {trigger.options['start']!r}")


def _check_webhook(place: str, trigger: Trigger) -> None:
    if trigger.value not in VERIFIERS:
        raise Mistake(f"{place}: webhook is one of {', '.join(VERIFIERS)}, not {trigger.value!r}")
    secret = trigger.options.get("secret")
    names = [secret] if isinstance(secret, str) else secret
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise Mistake(f"{place}: secret is the name of a variable of the environment, or a list")


def schedule_of(trigger: Trigger, place: str = "") -> Any:
    """Return the schedule of a trigger.

    Raises:
        Mistake: It has no such slots.
    """
    from pgflow import schedule
    from pgflow.errors import PgflowError
    from pgflow_cli.look.parsing import parse_duration

    options = {**trigger.options, trigger.source: trigger.value}
    for word in _DURATIONS:
        if word in options:
            options[word] = parse_duration(str(options[word]), f"{place}: {word}")
    try:
        return schedule(options.pop("cron", None), **options)
    except (PgflowError, TypeError, ValueError) as error:
        raise Mistake(f"{place}: {error}") from None
