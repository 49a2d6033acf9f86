"""Spans of OpenTelemetry that a test looks at: an exporter that keeps them."""

from __future__ import annotations

from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Spans:
    """Exporter that keeps its spans."""

    def __init__(self, **options: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = self.provider.get_tracer("the test")

    @property
    def all(self) -> list[ReadableSpan]:
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (span,) = self.named(name)
        return span

    @property
    def traces(self) -> set[int]:
        return {span.context.trace_id for span in self.all}

    def parent_of(self, span: ReadableSpan) -> str | None:
        """Name of the span below which it hangs."""
        names = {one.context.span_id: one.name for one in self.all}
        return names.get(span.parent.span_id) if span.parent else None


def is_child(span: ReadableSpan, parent: ReadableSpan | trace.Span) -> bool:
    context = parent.get_span_context()
    return (
        span.parent is not None
        and span.parent.span_id == context.span_id
        and span.context.trace_id == context.trace_id
    )


def said(span: ReadableSpan) -> dict[str, Any]:
    """Return the words of a span for generative AI, and its cost."""
    return {
        name.removeprefix("gen_ai."): value
        for name, value in (span.attributes or {}).items()
        if name.startswith(("gen_ai.", "pgflow.usage."))
    }
