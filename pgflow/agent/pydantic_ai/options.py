"""Options of the steps that an agent makes, and how a tool says its own.

A tool says them in its metadata under the key ``pgflow``, which is where pydantic-ai looks for
those of an engine. What a tool does not say comes from the capability.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Literal, cast

# pyright: reportMissingImports=false
from pydantic import TypeAdapter, ValidationError
from pydantic_ai.exceptions import UserError
from typing_extensions import TypedDict

import pgflow

KEY = "pgflow"
"""Key of a tool's metadata under which its options are."""

KINDS = ("read", "step")


class ModelOptions(TypedDict, total=False):
    """Options of requests to models.

    Attributes:
        retries: Tries in all (3 if not given), or how to space them.
        timeout: Longest time for one try.
        admit: Most that one request may cost: reserved on the pool of the run before it is made.
    """

    retries: int | pgflow.Retries
    timeout: timedelta | float
    admit: pgflow.authority.Admit


class StepOptions(ModelOptions, total=False):
    """Options of tool calls, and of calls of an event handler.

    Attributes:
        kind: ``step``, if not given: the call is made again under the same key after a crash.
            ``read``, if it changes nothing: it may be made again freely, and costs no commit.
        retries: As in :class:`ModelOptions`.
        timeout: As in :class:`ModelOptions`.
        admit: As in :class:`ModelOptions`.
    """

    kind: Literal["read", "step"]


_OPTIONS: TypeAdapter[StepOptions] = TypeAdapter(StepOptions)
"""Reads options that were recorded with the tools of a dynamic toolset, as JSON."""


def options_of_tool(tool: object | None, name: str) -> StepOptions | Literal[False]:
    """Return what a tool says of its calls; False if they run as code of the workflow.

    Raises:
        UserError: It says something else.
    """
    definition = getattr(tool, "tool_def", None)
    given: Any = (getattr(definition, "metadata", None) or {}).get(KEY, {})
    if given is False:
        return False
    if not isinstance(given, Mapping):
        raise UserError(
            f"tool {name!r}: metadata[{KEY!r}] must be False or a dict of options, not {given!r}"
        )
    options = checked(cast("StepOptions", dict(given)), f"tool {name!r}")
    try:
        return _OPTIONS.validate_python(options)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise UserError(
            f"tool {name!r}: option {first['loc'][0]!r} is not one: {first['msg']}"
        ) from None


def checked(options: StepOptions, whose: str) -> StepOptions:
    """Return options that are known.

    Raises:
        UserError: One is not.
    """
    known = StepOptions.__annotations__.keys() | ModelOptions.__annotations__.keys()
    if strange := sorted(options.keys() - known):
        raise UserError(
            f"{whose}: unknown option {strange[0]!r}; there are {', '.join(sorted(known))}"
        )
    if options.get("kind", "step") not in KINDS:
        raise UserError(
            f"{whose}: kind must be 'read' or 'step', not {options['kind']!r}; make a tool of an "
            "@effect or @transaction with as_tool()"
        )
    return options
