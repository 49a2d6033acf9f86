"""Traces with OpenTelemetry: one trace for each run, across workers, waits, crashes and children.

The trace is stored with the run: a start puts the W3C keys ``traceparent`` and ``tracestate`` of
its own span into the run's metadata, which are passed on to its children and to runs that its steps
start. So a run that an HTTP request starts belongs to the trace of the request, on any worker and
at any time.

A worker adds a span for each *activation* - from taking up the run until it parks, ends or moves to
another worker - and below it one for each attempt of a step's body. No span covers the whole life
of a run: it would be exported only at the end, weeks later, and be lost with a worker that dies.
Activations are exported at once, and the gaps between them are the waits. A run that started
without a trace, for example from SQL, gets one derived from its root UUID, the same on all workers.

Agents get spans by OpenTelemetry's conventions for generative AI: a request to a model and a call
of a tool below the attempt that makes it, a run of an agent below the activation. They have models,
tokens and costs, but no prompts or replies.

A replay repeats the record: it runs no bodies, and spans of the workflow's own code are not sampled
meanwhile (by any sampler that respects its parent, as the default does).

Needs ``pip install "pgflow-engine[otel]"``, and the OpenTelemetry SDK to export spans. Without an
SDK no span is made.
"""

from __future__ import annotations

import contextvars
import threading
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

try:
    from opentelemetry import context as context_api
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ImportError as error:  # pragma: no cover - needs an environment without it
    raise ImportError(
        'pgflow.otel needs OpenTelemetry: pip install "pgflow-engine[otel]"'
    ) from error

from pgflow import RunInfo, StartOptions, __version__
from pgflow._flow.interceptor import checking, outcome_of, replaying
from pgflow.extensions import Interceptor, Operation
from pgflow.inspect import derive_ids
from pgflow.texts import text_of, without_secrets

METADATA_KEYS: Final = ("traceparent", "tracestate")
"""Keys of a run's metadata that hold its trace, as W3C Trace Context defines them."""

PROVIDERS: Final = {
    "azure": "azure.ai.openai", "bedrock": "aws.bedrock", "google": "gcp.gemini",
    "google-cloud": "gcp.vertex_ai", "google-gla": "gcp.gemini", "google-vertex": "gcp.vertex_ai",
    "google_genai": "gcp.gen_ai", "google_vertexai": "gcp.vertex_ai", "grok": "x_ai",
    "mistral": "mistral_ai", "mistralai": "mistral_ai", "moonshotai": "moonshot_ai", "xai": "x_ai",
}  # fmt: skip
"""Names of providers in frameworks, and in OpenTelemetry's conventions where they differ."""

UNKNOWN_PROVIDER: Final = "_OTHER"
"""Value of the required ``gen_ai.provider.name`` if it is unknown."""

_propagator = TraceContextTextMapPropagator()
_agent: contextvars.ContextVar[trace.Span | None] = contextvars.ContextVar(
    "pgflow_otel_agent", default=None
)
"""Span of the current operation of a workflow's code. The bodies of its steps see it."""


class Tracing(Interceptor):
    """Makes spans of starts, activations and tries of steps.

    Args:
        tracer_provider: Receiver of spans; the global one if not given.
        record_exceptions: True if spans carry the text and traceback of errors, which may quote
            what a run works on; else only their class, as ``error.type``.

    Example::

        app = AsyncApp(include=[checkout], interceptors=[Tracing()])
    """

    def __init__(
        self,
        tracer_provider: trace.TracerProvider | None = None,
        *,
        record_exceptions: bool = False,
    ) -> None:
        self._tracer = trace.get_tracer("pgflow", __version__, tracer_provider)
        self._record_exceptions = record_exceptions
        self._activations: dict[int, trace.Span] = {}
        self._lock = threading.Lock()

    def start(self, workflow: str, options: StartOptions) -> StartOptions:
        """A span for the start; its context becomes part of the run's metadata."""
        attributes: dict[str, Any] = {"pgflow.workflow": workflow, "pgflow.queue": options.queue}
        if options.key is not None:
            attributes["pgflow.run.key"] = options.key
        span = self._tracer.start_span(
            f"start {workflow}", kind=trace.SpanKind.PRODUCER, attributes=attributes
        )
        span.end()
        # Without an SDK there is no span; a trace from outside is still passed on.
        return _with_trace(
            options, span if span.get_span_context().is_valid else trace.get_current_span()
        )

    def start_child(self, info: RunInfo, workflow: str, options: StartOptions) -> StartOptions:
        """The child goes on with the trace, below the activation that asked for it."""
        del workflow
        activation = self._activations.get(info.run_id)
        return options if activation is None else _with_trace(options, activation)

    @contextmanager
    def around_workflow(self, info: RunInfo) -> Iterator[None]:
        """A span for the activation; the current one for what the code
        of the workflow traces itself.
        """
        if checking():
            context_api.attach(
                trace.set_span_in_context(
                    _QuietInReplay(trace.NonRecordingSpan(self._derived(info)))
                )
            )
            yield
            return
        span = self._tracer.start_span(
            f"run {info.workflow}",
            self._context_of(info),
            kind=trace.SpanKind.CONSUMER,
            attributes=_attributes(info),
        )
        # Never detached: the context is the activation's own,
        # ends with it, and may be left from another.
        context_api.attach(trace.set_span_in_context(_QuietInReplay(span)))
        with self._lock:
            self._activations[info.run_id] = span
        try:
            with self._ending(span):
                yield
        finally:
            with self._lock:
                if self._activations.get(info.run_id) is span:
                    del self._activations[info.run_id]

    @contextmanager
    def around_step(self, info: RunInfo) -> Iterator[None]:
        """A span for a try of a body; the current one meanwhile, so that clients that the body uses
        hang theirs below it.
        """
        parent = self._context_within(info)
        span = self._tracer.start_span(
            f"{info.effect} {info.step}", parent, attributes=_attributes(info)
        )
        token = context_api.attach(trace.set_span_in_context(span, parent))
        try:
            with self._ending(span):
                yield
        finally:
            context_api.detach(token)

    @contextmanager
    def around_operation(self, info: RunInfo, operation: Operation) -> Iterator[None]:
        """A span for a request to a model, a call of a tool or a run of an agent."""
        if checking():
            yield
        elif info.step is None:
            with self._operation_of_code(info, operation):
                yield
        else:
            span = self._start(info, operation, context_api.get_current())
            current = trace.use_span(span, record_exception=False, set_status_on_exception=False)
            with current, self._ending(span, operation):
                yield

    @contextmanager
    def _operation_of_code(self, info: RunInfo, operation: Operation) -> Iterator[None]:
        """A span for an operation of the code of a workflow. What a replay repeats as a whole has
        had its span, so this one is dropped.
        """
        span = self._start(info, operation, self._context_within(info))
        outer, context = _agent.get(), context_api.get_current()
        _agent.set(span)
        context_api.attach(trace.set_span_in_context(_QuietInReplay(span), context))
        try:
            with self._ending(span, operation):
                yield
        finally:
            # Set, and not reset: a loop may close the code in another context.
            _agent.set(outer)
            context_api.attach(context)

    def _start(
        self, info: RunInfo, operation: Operation, parent: context_api.Context
    ) -> trace.Span:
        is_request = operation.kind == "chat"
        return self._tracer.start_span(
            f"{operation.kind} {operation.name}" if operation.name else operation.kind,
            parent,
            kind=trace.SpanKind.CLIENT if is_request else trace.SpanKind.INTERNAL,
            attributes={**_attributes(info), **_asked(operation)},
            start_time=operation.began_ns,
        )

    def _context_within(self, info: RunInfo) -> context_api.Context:
        """Return the context of the current operation of the workflow's code, else of its
        activation.
        """
        span = _agent.get() or self._activations.get(info.run_id)
        if span is None:
            return self._context_of(info)
        return trace.set_span_in_context(span, context_api.Context())

    @contextmanager
    def _ending(self, span: trace.Span, operation: Operation | None = None) -> Iterator[None]:
        """End a span with its outcome, except for a replayed operation."""
        outcome = "completed"
        try:
            yield
        except BaseException as error:
            outcome = outcome_of(error)
            if outcome == "failed":
                span.set_attribute("error.type", _class_name(error))
                span.set_status(
                    trace.StatusCode.ERROR,
                    without_secrets(text_of(error))
                    if self._record_exceptions
                    else _class_name(error),
                )
                if self._record_exceptions:
                    span.record_exception(error, _without_secrets(error))
            raise
        finally:
            if operation is not None:
                span.set_attributes(_came_to(operation))
            if operation is None or outcome == "left" or not replaying():
                span.set_attribute("pgflow.outcome", outcome)
                span.end()

    def _context_of(self, info: RunInfo) -> context_api.Context:
        """The stored trace of a run, else the one that is made of its root UUID."""
        stored = _propagator.extract(_carrier(info.metadata), context_api.Context())
        if trace.get_current_span(stored).get_span_context().is_valid:
            return stored
        return trace.set_span_in_context(
            trace.NonRecordingSpan(self._derived(info)), context_api.Context()
        )

    def _derived(self, info: RunInfo) -> trace.SpanContext:
        trace_id, span_id = derive_ids(info.root)
        sampler = getattr(self._tracer, "sampler", None)  # the SDK's: a start would have asked it
        sampled = (
            sampler is None
            or sampler.should_sample(None, trace_id, f"start {info.workflow}").decision.is_sampled()
        )
        return trace.SpanContext(
            trace_id, span_id, is_remote=True, trace_flags=trace.TraceFlags(int(sampled))
        )


class _QuietInReplay(trace.NonRecordingSpan):
    """An activation's span as the code of the workflow sees it: a parent that is not sampled as
    long as the code replays.
    """

    def __init__(self, span: trace.Span) -> None:
        own = span.get_span_context()
        super().__init__(own)
        self._quiet = trace.SpanContext(
            own.trace_id, own.span_id, is_remote=False, trace_state=own.trace_state
        )

    def get_span_context(self) -> trace.SpanContext:
        return self._quiet if replaying() else super().get_span_context()


def _with_trace(options: StartOptions, span: trace.Span) -> StartOptions:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, trace.set_span_in_context(span, context_api.Context()))
    return replace(options, metadata={**options.metadata, **carrier}) if carrier else options


def _carrier(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the trace headers in metadata, without those that are not text;
    any sender may have written it.
    """
    return {key: value for key in METADATA_KEYS if isinstance(value := metadata.get(key), str)}


def _attributes(info: RunInfo) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "pgflow.run.key": info.key,
        "pgflow.run.id": info.run_id,
        "pgflow.workflow": info.workflow,
        "pgflow.generation": info.generation,
    }
    if info.tenant:
        attributes["pgflow.tenant"] = info.tenant
    if info.step is None:
        return {**attributes, "pgflow.claim": info.attempt}
    return {
        **attributes,
        "pgflow.step": info.step,
        "pgflow.effect": info.effect,
        "pgflow.call": info.call,
        "pgflow.attempt": info.step_attempt,
        "pgflow.idempotency_key": info.idempotency_key,
    }


def _asked(operation: Operation) -> dict[str, Any]:
    """Return what is known of an operation as it begins, by the conventions."""
    named = {"chat": "request.model", "execute_tool": "tool.name", "invoke_agent": "agent.name"}
    asked: dict[str, Any] = {
        "operation.name": operation.kind,
        named[operation.kind]: operation.name,
        "conversation.id": operation.conversation,
    }
    if operation.kind == "execute_tool":
        asked |= {"tool.call.id": operation.id, "tool.type": "function"}
    else:
        asked["provider.name"] = _provider(operation)
    return _given(asked)


def _provider(operation: Operation) -> str:
    name = operation.provider or UNKNOWN_PROVIDER
    return PROVIDERS.get(name, name)


def _came_to(operation: Operation) -> dict[str, Any]:
    """Return what is known of an operation at its end."""
    usd = None if operation.usd is None else float(operation.usd)
    own = {"pgflow.usage.usd": usd, "pgflow.usage.tokens": operation.tokens}
    if operation.kind == "execute_tool":
        return {}
    return _given(
        {
            "provider.name": _provider(operation),
            "response.model": operation.model,
            "response.id": operation.id,
            "response.finish_reasons": list(operation.finish_reasons) or None,
            "usage.input_tokens": operation.input_tokens,
            "usage.output_tokens": operation.output_tokens,
            "usage.cache_read.input_tokens": operation.cached_tokens,
        }
    ) | {name: value for name, value in own.items() if value is not None}


def _given(facts: Mapping[str, Any]) -> dict[str, Any]:
    return {f"gen_ai.{name}": value for name, value in facts.items() if value is not None}


def _without_secrets(error: BaseException) -> dict[str, str]:
    """Attributes of a recorded exception that may quote passwords, without these."""
    return {
        "exception.message": without_secrets(text_of(error)),
        "exception.stacktrace": without_secrets("".join(traceback.format_exception(error))),
    }


def _class_name(error: BaseException) -> str:
    kind = type(error)
    return (
        kind.__qualname__
        if kind.__module__ == "builtins"
        else f"{kind.__module__}.{kind.__qualname__}"
    )
