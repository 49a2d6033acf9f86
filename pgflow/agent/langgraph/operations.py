"""Traces of the models and tools that a node calls.

A node is one step, whatever it does. So this module listens to the framework's callbacks, which
report the begin and end of each call of a model or tool.
"""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.outputs import LLMResult

from pgflow._flow.operations import tell
from pgflow.extensions import Operation


class Telling(BaseCallbackHandler):
    """Callbacks of one try of a node."""

    run_inline = True

    def __init__(self) -> None:
        self._begun: dict[UUID, Operation] = {}

    def on_chat_model_start(self, *_: Any, run_id: UUID, **facts: Any) -> None:
        """Take the name of a model that is asked."""
        about = facts.get("metadata") or {}
        self._begin(run_id, Operation("chat", about.get("ls_model_name")), about.get("ls_provider"))

    def on_llm_start(self, *_: Any, run_id: UUID, **facts: Any) -> None:
        """Take the name of a model that completes texts."""
        self.on_chat_model_start(run_id=run_id, **facts)

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **_: Any) -> None:
        """Trace a response."""
        if (request := self._begun.pop(run_id, None)) is None:
            return
        for choice in (choice for choices in response.generations for choice in choices):
            _describe(request, getattr(choice, "message", None))
        tell(request)

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Trace a request that failed."""
        self._fail(run_id, error)

    def on_tool_start(
        self, serialized: dict[str, Any] | None, *_: Any, run_id: UUID, **facts: Any
    ) -> None:
        """Take the name of a tool."""
        name = facts.get("name") or (serialized or {}).get("name")
        self._begin(run_id, Operation("execute_tool", name, id=facts.get("tool_call_id")))

    def on_tool_end(self, *_: Any, run_id: UUID, **__: Any) -> None:
        """Trace a tool."""
        if (called := self._begun.pop(run_id, None)) is not None:
            tell(called)

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """Trace a tool that failed."""
        self._fail(run_id, error)

    def _begin(self, run_id: UUID, operation: Operation, provider: str | None = None) -> None:
        operation.began_ns, operation.provider = time.time_ns(), provider
        self._begun[run_id] = operation

    def _fail(self, run_id: UUID, error: BaseException) -> None:
        if (failed := self._begun.pop(run_id, None)) is not None:
            tell(failed, error)


def _describe(request: Operation, message: Any) -> None:
    """Take what a message says of the model and its tokens."""
    metadata = getattr(message, "response_metadata", None) or {}
    usage = getattr(message, "usage_metadata", None) or {}
    request.id = getattr(message, "id", None)
    request.model = metadata.get("model_name") or metadata.get("model") or request.name
    request.input_tokens = usage.get("input_tokens")
    request.output_tokens = usage.get("output_tokens")
    request.cached_tokens = (usage.get("input_token_details") or {}).get("cache_read")
    reason = metadata.get("finish_reason") or metadata.get("stop_reason")
    request.finish_reasons = [str(reason)] if reason else ()
