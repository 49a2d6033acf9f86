"""An app whose workers write their spans to a file, one a line, as soon as they end."""

from __future__ import annotations

import os
from pathlib import Path

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from pgflow import AsyncApp, Signal, step, workflow
from pgflow.otel import Tracing

go = Signal("go", int)


def line(span: ReadableSpan) -> str:
    return span.to_json(indent=None) + "\n"


def provider() -> TracerProvider:
    made = TracerProvider()
    out = Path(os.environ["SPANS_FILE"]).open("a", buffering=1)  # noqa: SIM115 - open as long as the worker lives
    made.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(out=out, formatter=line)))
    return made


@step
async def first() -> int:
    return os.getpid()


@step
async def second() -> int:
    return os.getpid()


@step
async def die_once(path: str) -> None:
    try:
        Path(path).touch(exist_ok=False)
    except FileExistsError:
        return
    os.kill(os.getpid(), 9)


@workflow
async def travelling(path: str) -> list[int]:
    pids = [await first()]
    await go.wait()
    await die_once(path)
    return [*pids, await second()]


if "SPANS_FILE" in os.environ:
    app = AsyncApp(include=[travelling], interceptors=[Tracing(provider())])
