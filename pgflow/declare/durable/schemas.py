"""Output schemas: the faults of an answer by its schema. Nothing is fetched, so a schema that
refers to another document is not valid.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import JsonValue

from pgflow.declare.text.javascript import parse_json


def why_no_schema(schema: Any) -> str:
    """Return the reason why a schema is not valid, so that nothing is checked by it; empty if it
    is.
    """
    import jsonschema
    from jsonschema.validators import validator_for

    try:
        validator_for(schema).check_schema(schema)
    except (jsonschema.SchemaError, AttributeError, TypeError) as error:
        return str(getattr(error, "message", error))[:300]
    for reference in _references(schema):
        if not reference.startswith("#"):
            return f"it refers to {reference[:200]}"
    return ""


def misfits(value: JsonValue, schema: Any) -> str:
    """Return the faults of a value; empty for an invalid schema."""
    from jsonschema.validators import validator_for
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    if why_no_schema(schema):
        return ""
    validator = validator_for(schema)(schema, registry=Registry())
    try:
        errors = [error.message for error in validator.iter_errors(value)]
    except Unresolvable:
        return ""
    return "; ".join(errors[:5])[:1000]


def certified(text: str, schema: Any) -> JsonValue:
    """Return the value that a text is the JSON of.

    Args:
        text: One JSON document and nothing else.
        schema: Schema that it must fit.

    Raises:
        ValueError: It is not JSON, or does not fit.
    """
    try:
        value = parse_json(text)
    except ValueError as error:
        raise ValueError(f"it is not JSON: {error}") from None
    if wrong := misfits(value, schema):
        raise ValueError(wrong)
    return value


def _references(schema: Any) -> Iterator[str]:
    """Yield every ``$ref`` of a schema."""
    inner = schema.values() if isinstance(schema, dict) else schema
    if isinstance(schema, dict) and isinstance(schema.get("$ref"), str):
        yield schema["$ref"]
    if isinstance(schema, dict | list):
        for part in inner:
            yield from _references(part)
