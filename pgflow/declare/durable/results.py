"""Result of a run of a declared workflow, and its failure."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    SerializerFunctionWrapHandler,
    model_serializer,
)

import pgflow
from pgflow.declare.durable.long import Long


class WorkflowFailed(Exception):
    """A declared workflow has failed: a node did, or no node ran."""


class NodeFailed(Exception):
    """The work of a node has failed. `pgflow retry` does it again."""


pgflow.extensions.register_errors(WorkflowFailed, NodeFailed)


class Result(BaseModel):
    """Result of a run that completed.

    Attributes:
        output: Words of it: the text of its last node, or of the one that it returns.
        value: The same as a value, if it is one.
        has_value: True if it is.
        outcome: Verdict on its own work, if its file has an ``outcome_field``.
        nodes: States of its nodes.
        long: File with all of an output that is too long for the journal, of which the words are
            the beginning; a value is only there then.
    """

    model_config = ConfigDict(extra="forbid")

    output: str = ""
    value: JsonValue = None
    has_value: bool = False
    outcome: Literal["succeeded", "failed"] | None = None
    nodes: dict[str, str] = Field(default_factory=dict)
    long: Long | None = None

    @model_serializer(mode="wrap")
    def _without_no_file(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out an empty file, since programs of older versions read this too."""
        dumped: dict[str, Any] = dump(self)
        if self.long is None:
            del dumped["long"]
        return dumped
