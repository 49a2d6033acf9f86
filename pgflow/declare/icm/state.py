"""The state of a workflow: the artifacts that flow between its stages, by name, and path
expressions into them.

An entry is a file (``location``, ``written_by``, ``optional``) or a signal, a message from outside
(``schema``). A schema is written short (``{ folder_path: string }``: fields that must be there,
with their types) or as a JSON Schema. A path expression (``delivery_target.folder_path``) names an
entry and goes down its schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from pgflow.declare.graph import Artifact
from pgflow.declare.icm.folders import Folder, leads_out, resolve
from pgflow.declare.icm.given import Given
from pgflow.declare.text.outputs import value_text
from pgflow.declare.text.spelling import similar

State = Mapping[str, Artifact]

_NOWHERE: Final = Path("workspace")
ENTRY_KEYS: Final = frozenset({"type", "location", "written_by", "optional", "schema"})
_TYPES: Final = ("string", "number", "integer", "boolean", "object", "array", "null")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_STEP = re.compile(r"\.?([A-Za-z_][A-Za-z0-9_-]*)|\[(\d+)\]")
_PATH = re.compile(rf"{_NAME.pattern}(?:{_STEP.pattern})*")
_IN_BRACES = re.compile(r"\{\s*([^{}\s]+)\s*\}")
RUN_PATHS: Final = ("run.key", "run.id")
"""Paths to the key of the run, in keys."""
_KEYWORDS = frozenset(
    {"type", "properties", "$ref", "$schema", "anyOf", "oneOf", "allOf", "enum", "const"}
)


def read_state(given: Given, folder: Folder | None) -> dict[str, Artifact]:
    """Return the entries of ``state``.

    Args:
        given: The mapping.
        folder: The workspace, out of which no location may lead;
            None if there is only its workflow file.
    """
    entries = given.fields() or {}
    read = {name: _read_entry(name, entry, folder) for name, entry in entries.items()}
    return {name: artifact for name, artifact in read.items() if artifact is not None}


def _read_entry(name: str, given: Given, folder: Folder | None) -> Artifact | None:
    fields = given.fields(ENTRY_KEYS)
    if fields is None:
        return None
    if not _NAME.fullmatch(name):
        given.findings.error(
            f"state entry {name!r} needs a name of letters, digits, _ and -", given.at
        )
    kind = fields["type"].value if "type" in fields else "file"
    if kind not in {"file", "signal"}:
        fields["type"].wrong("file or signal")
        return None
    location = fields["location"].text() if "location" in fields else None
    if location is not None:
        _check_location(location, fields["location"], folder)
    schema = _schema(fields["schema"]) if "schema" in fields else None
    optional = fields["optional"].boolean() if "optional" in fields else False
    artifact = Artifact(
        name=name,
        kind="signal" if kind == "signal" else "file",
        location=location,
        written_by=fields["written_by"].text() if "written_by" in fields else None,
        optional=bool(optional),
        json_schema=schema,
        position=given.at,
    )
    _check_source(artifact, given)
    return artifact


def _check_location(location: str, given: Given, folder: Folder | None) -> None:
    """Check that a location is a path inside the workspace."""
    here = folder or Folder(root=_NOWHERE)
    if leads_out(here, resolve(here, "", location)):
        given.findings.error(
            f"location {location!r} leads out of the workspace",
            given.at,
            "Name a path below the workspace's folder.",
        )


def _check_source(artifact: Artifact, given: Given) -> None:
    """Warn of a signal with a location or a writer, and of a file without either."""
    if artifact.kind == "signal" and (artifact.location or artifact.written_by):
        given.findings.warn(
            f"signal {artifact.name!r} comes from outside: its location and written_by are ignored",
            given.at,
        )
    if artifact.kind == "file" and artifact.location is None and artifact.written_by is None:
        given.findings.warn(
            f"file {artifact.name!r} has neither a location nor a stage that writes it", given.at
        )


def _schema(given: Given) -> JsonValue:
    """Return a schema as JSON Schema."""
    if not isinstance(given.value, dict):
        given.wrong("a mapping of fields to types, or a JSON Schema")
        return None
    if given.value.keys() & _KEYWORDS and not all(
        value in _TYPES for value in given.value.values()
    ):
        return given.value
    fields = given.fields() or {}
    return {
        "type": "object",
        "properties": {name: _field(field) for name, field in fields.items()},
        "required": list(fields),
    }


def _field(given: Given) -> JsonValue:
    """Return a field of a short schema: a type's name, or a schema again."""
    if isinstance(given.value, dict):
        return _schema(given)
    if given.value in _TYPES:
        return {"type": given.value}
    given.wrong(f"a type ({', '.join(_TYPES)})")
    return {}


# Idempotency keys ---------------------------------------------------------------------------------


def is_quoted(key: str) -> bool:
    """Return True for a key that is a text in quotes."""
    return len(key) > 1 and key[0] == key[-1] == "'"


def is_meant_as_path(key: str, state: State) -> bool:
    """Return True for a key that names an entry, or nearly does; False for a literal."""
    name = entry_of(key)
    if name in state or key in RUN_PATHS or key.startswith((".", "[")):
        return True
    is_path = bool(name) and _PATH.fullmatch(key) is not None
    return is_path and (name != key or bool(similar(name, sorted(state))))


def key_paths(key: str) -> tuple[str, ...]:
    """Return the paths into the state that a key has.

    Args:
        key: A path, a literal in quotes, or a template.
    """
    if is_quoted(key):
        return ()
    return tuple(_IN_BRACES.findall(key)) if "{" in key else (key,)


def key_value(key: str, value_at: Callable[[str], JsonValue]) -> JsonValue:
    """Return the value of a key; None if a path in it leads to nothing.

    Args:
        key: A path, a literal in quotes, or a template.
        value_at: Function that returns the value of a path.
    """
    if is_quoted(key):
        return key[1:-1]
    if "{" not in key:
        return value_at(key)
    values = {path: value_at(path) for path in key_paths(key)}
    if any(value is None for value in values.values()):
        return None
    return _IN_BRACES.sub(lambda found: value_text(values[found[1]]), key)


# Paths into the state -----------------------------------------------------------------------------


def entry_of(expression: str) -> str:
    """Return the name of the entry that a path expression begins with."""
    found = _NAME.match(expression.strip())
    return found[0] if found else ""


def check_path(expression: str, state: State, given: Given) -> bool:
    """Return True if a path expression leads to something that the state declares;
    else record why not.

    Args:
        expression: The expression, as in ``delivery_target.folder_path``.
        state: The entries.
        given: Place of the expression.
    """
    steps, end = [], 0
    while found := _STEP.match(expression, end):
        steps.append(found[1] or f"[{found[2]}]")
        end = found.end()
    if end != len(expression) or not steps or expression.startswith((".", "[")):
        hint = "Write entry.field, as in delivery_target.folder_path."
        given.findings.error(
            f"{given.name} {expression!r} is not a path into the state", given.at, hint
        )
        return False
    if steps[0] not in state:
        given.findings.error(
            unknown_entry(steps[0], state, f"{given.name} {expression!r}"), given.at
        )
        return False
    return _check_steps(steps, state[steps[0]], expression, given)


def _check_steps(steps: list[str], entry: Artifact, expression: str, given: Given) -> bool:
    """Return True if the steps after the first go down the entry's schema; else record why not."""
    schema, place = entry.json_schema, steps[0]
    for step in steps[1:]:
        if not isinstance(schema, dict):
            given.findings.warn(
                f"{given.name} {expression!r} cannot be checked: {place!r} has no schema", given.at
            )
            return True
        inner = _below(schema, step)
        if inner is None:
            known = schema.get("properties")
            fields = ", ".join(known) if isinstance(known, dict) and known else "no fields"
            given.findings.error(
                f"{given.name} {expression!r}: {place!r} has no field {step!r} (it has {fields})",
                given.at,
            )
            return False
        schema, place = inner, f"{place}.{step}"
    return True


def _below(schema: dict[str, JsonValue], step: str) -> JsonValue:
    """Return the schema of what is at a step; None if there can be nothing."""
    if step.startswith("["):
        return schema.get("items", {}) if schema.get("type") == "array" else None
    properties = schema.get("properties")
    if isinstance(properties, dict):
        return properties.get(step)
    return {} if schema.get("type") in {None, "object"} else None


def unknown_entry(name: str, state: State, where: str) -> str:
    """Return the message about a name that the state does not have."""
    guess = similar(name, sorted(state))
    return f"{where}: the state has no entry {name!r}" + (
        f"; did you mean {guess[0]!r}?" if guess else ""
    )
