"""Fields of one stage, declared in the same words in workflow.yaml
and in the frontmatter of its CONTEXT.md::

    reads: [transcript, meeting_notes]          # names of state entries
    writes: [action_items]
    gate: explicit_request                      # the stage runs only on request
    interrupt_before: true                      # a person lets it go on
    side_effects:
      - system: email
        idempotency_key: approval.message_id    # a path into the state, checked against its schema;
                                                # a literal, or a template: minutes-{run.key}
        compensation: send_correction           # one of the stage's or the workflow's
                                                # compensations, or an instruction
    compensations: { send_correction: "Send a correction to the same people." }
    retry: 3                                # or { max_attempts: 3, delay: 5s, on_error: transient }
    timeout: 15m                                # seconds, or with ms, s, m, h, d, w
    wait: seven days                            # or tomorrow morning, monday 9:30 Europe/Berlin
    deadline: 3d                                # longest time that its messages may take
    on_deadline: skip                           # or fail, the default

If both declare a field, the frontmatter wins, since it is with its stage. A difference gives a
warning.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypeVar

from pgflow.declare.graph import Compensation, Effect, Position, Retry
from pgflow.declare.icm.findings import Findings
from pgflow.declare.icm.given import Given, each
from pgflow.declare.icm.state import (
    RUN_PATHS,
    State,
    check_path,
    is_meant_as_path,
    is_quoted,
    key_paths,
    unknown_entry,
)

STAGE_KEYS: Final = frozenset(
    {
        "reads", "writes", "gate", "interrupt_before", "side_effects", "compensations", "retry",
        "timeout", "wait", "deadline", "on_deadline", "description",
    }
)  # fmt: skip
_EFFECT_KEYS: Final = frozenset({"system", "idempotency_key", "compensation", "description"})
_RETRY_KEYS: Final = frozenset({"max_attempts", "delay", "delay_ms", "on_error"})
_MOST_RETRIES: Final = 100

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StageFields:
    """Fields that a file declares of a stage; None where it says nothing."""

    reads: tuple[str, ...] | None = None
    writes: tuple[str, ...] | None = None
    on_request: bool | None = None
    interrupt_before: bool | None = None
    effects: tuple[Effect, ...] | None = None
    compensations: tuple[Compensation, ...] | None = None
    retry: Retry | None = None
    timeout_ms: float | None = None
    wait: str | None = None
    deadline_ms: float | None = None
    skips: bool | None = None
    description: str | None = None
    places: dict[str, Position] = dataclasses.field(default_factory=dict, compare=False)


def read_stage_fields(
    fields: dict[str, Given], state: State, shared: tuple[Compensation, ...] = ()
) -> StageFields:
    """Read what is declared of a stage.

    Args:
        fields: The values by their keys; others than `STAGE_KEYS` are not looked at.
        state: The workflow's state.
        shared: The workflow's own compensations.
    """

    def read(key: str, how: Callable[[Given], T]) -> T | None:
        return how(fields[key]) if key in fields and fields[key].value is not None else None

    compensations = read("compensations", read_compensations)
    known = {c.name for c in (*(compensations or ()), *shared)}
    return StageFields(
        reads=read("reads", lambda given: _names(given, state)),
        writes=read("writes", lambda given: _names(given, state)),
        on_request=read("gate", _on_request),
        interrupt_before=read("interrupt_before", Given.boolean),
        effects=read("side_effects", lambda given: _effects(given, state, known)),
        compensations=compensations,
        retry=read("retry", _retry),
        timeout_ms=read("timeout", Given.duration_ms),
        wait=read("wait", Given.time),
        deadline_ms=read("deadline", Given.duration_ms),
        skips=read("on_deadline", _on_deadline),
        description=read("description", Given.text),
        places={key: given.at for key, given in fields.items()},
    )


def combine(
    frontmatter: StageFields, workflow: StageFields, stage: str, findings: Findings
) -> StageFields:
    """Combine the fields of a stage from its frontmatter and from workflow.yaml,
    and warn of differences.

    Args:
        frontmatter: Fields of the stage's own file.
        workflow: Fields of the stage in workflow.yaml.
        stage: The stage's id.
        findings: Collector of the findings.
    """
    chosen = {}
    for key in (f.name for f in dataclasses.fields(StageFields) if f.name != "places"):
        near, far = getattr(frontmatter, key), getattr(workflow, key)
        if near is not None and far is not None and _content(near) != _content(far):
            word = _WORDS.get(key, key)
            message = f"{word} of stage {stage!r} differs from workflow.yaml; this one is used"
            findings.warn(message, frontmatter.places.get(word))
        chosen[key] = far if near is None else near
    return StageFields(**chosen, places={**workflow.places, **frontmatter.places})


_WORDS: Final = {
    "on_request": "gate",
    "effects": "side_effects",
    "timeout_ms": "timeout",
    "deadline_ms": "deadline",
    "skips": "on_deadline",
}


def _content(value: object) -> object:
    """Return a value without the places of its parts."""
    if isinstance(value, tuple):
        return tuple(_content(part) for part in value)
    return (
        value.model_copy(update={"position": None})
        if isinstance(value, Effect | Compensation)
        else value
    )


def _names(given: Given, state: State) -> tuple[str, ...]:
    """Names of state entries."""

    def read(item: Given) -> str | None:
        name = item.text()
        if name is not None and name not in state:
            item.findings.error(
                unknown_entry(name, state, given.name),
                item.at,
                "Declare it under state in workflow.yaml.",
            )
            return None
        return name

    return tuple(each(given, read))


def _on_request(given: Given) -> bool:
    if given.value == "explicit_request":
        return True
    given.wrong("explicit_request")
    return False


def _on_deadline(given: Given) -> bool:
    if given.value not in {"fail", "skip"}:
        given.wrong("fail or skip")
    return given.value == "skip"


def _effects(given: Given, state: State, compensations: set[str]) -> tuple[Effect, ...]:
    read = [_effect(item, state, compensations) for item in given.items()]
    return tuple(effect for effect in read if effect is not None)


def _effect(given: Given, state: State, compensations: set[str]) -> Effect | None:
    fields = given.fields(_EFFECT_KEYS)
    if fields is None:
        return None
    if "system" not in fields:
        given.findings.error(
            f"{given.name} names no system",
            given.at,
            "Write what it acts on: { system: email, ... }.",
        )
        return None
    system = fields["system"].text() or ""
    key = _key(fields["idempotency_key"], state) if "idempotency_key" in fields else None
    if "idempotency_key" not in fields:
        given.findings.warn(
            f"the side effect on {system!r} has no idempotency_key: a retry may do it twice",
            given.at,
        )
    compensation = fields["compensation"].text() if "compensation" in fields else None
    if (
        compensation is not None
        and compensation not in compensations
        and " " not in compensation.strip()
    ):
        hint = "Declare it under compensations, or write an instruction."
        given.findings.error(
            f"compensation {compensation!r} is not declared", fields["compensation"].at, hint
        )
    description = fields["description"].text() if "description" in fields else None
    return Effect(
        system=system,
        idempotency_key=key,
        compensation=compensation,
        description=description or "",
        position=given.at,
    )


def _key(given: Given, state: State) -> str | None:
    """Return an idempotency key: a path into the state, a literal in quotes, or a template."""
    text = given.text()
    if text is None or is_quoted(text):
        return text
    if "{" not in text and not is_meant_as_path(text, state):
        return f"'{text}'"
    for path in key_paths(text):
        if path not in RUN_PATHS or "run" in state:
            check_path(path, state, given)
    return text


def read_compensations(given: Given) -> tuple[Compensation, ...]:
    """Compensations: a mapping of names to instructions, or a list of names.

    Args:
        given: The value.
    """
    if isinstance(given.value, dict):
        named = (given.fields() or {}).items()
        read = [
            (name, item.text() if item.value is not None else "", item.at) for name, item in named
        ]
        return tuple(
            Compensation(name=name, description=text, position=at)
            for name, text, at in read
            if text is not None
        )
    texts = [(item.text(), item.at) for item in given.items()]
    return tuple(Compensation(name=text, position=at) for text, at in texts if text is not None)


def _retry(given: Given) -> Retry | None:
    """Read the number of tries and the delay after a failure of a stage."""
    if not isinstance(given.value, dict):
        times = given.whole(0, _MOST_RETRIES)
        return Retry(max_retries=times) if times is not None else None
    fields = given.fields(_RETRY_KEYS) or {}
    if "max_attempts" not in fields:
        given.findings.error(f"{given.name} must say max_attempts", given.at)
        return None
    times = fields["max_attempts"].whole(0, _MOST_RETRIES)
    delay = fields["delay"].duration_ms() if "delay" in fields else None
    if "delay_ms" in fields:
        delay = fields["delay_ms"].whole(1, 10**12)
    errors = _on_error(fields["on_error"]) if "on_error" in fields else "transient"
    return Retry(max_retries=times or 0, delay_ms=int(delay or 3_000), on_error=errors)


def _on_error(given: Given) -> Literal["transient", "all"]:
    if given.value not in {"transient", "all"}:
        given.wrong("transient or all")
    return "all" if given.value == "all" else "transient"
