"""One trace a run: across workers, waits, children and replays, and nothing where nobody traces."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from processes import worker
from records import SOON, recover, run_row, settle, wait_until
from servers import HANG_SECONDS
from spankit import Spans, is_child

import pgflow
from pgflow import App, Retries, RunFailed, Signal, read, step, transaction, workflow
from pgflow.otel import Tracing
from pgflow.testing import replay_all

go = Signal("go", int)
inner = trace.get_tracer("the application's own")


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


def outcomes(found: list[ReadableSpan]) -> list[Any]:
    return [span.attributes["pgflow.outcome"] for span in found]


@step(retries=Retries(max_attempts=2, first_delay=timedelta(milliseconds=1)))
async def shaky(secret: str) -> int:
    if pgflow.run_info().step_attempt == 1:
        raise OSError(secret)
    return 1


@read
def steady() -> str:
    return format(trace.get_current_span().get_span_context().span_id, "x")


@transaction
async def write(conn: psycopg.AsyncConnection[Any]) -> int:
    return 1


@workflow
async def work() -> str:
    await shaky("hunter2")
    seen = await steady.aio()
    await go.wait()
    await write()
    return seen


@workflow
def work_sync() -> str:
    shaky.sync("hunter2")
    seen = steady()
    go.sync.wait()
    write.sync()
    return seen


@pytest.mark.full
@pytest.mark.parametrize("made", [work, work_sync])
def test_a_run_is_one_trace_over_workers_and_waits_below_the_span_that_started_it(dsn, spans, made):
    app = App(dsn, include=[made], interceptors=[Tracing(spans.provider)])
    with app:
        with spans.tracer.start_as_current_span("request") as request:
            run = app.start(made.options(key="k"))
        with app.worker():
            wait_until(
                lambda: len(spans.named(f"run {made.name}")) == 1,
                "the first worker has left the run",
            )
        with app.worker():
            run.send(go, 1)
            seen = run.result(SOON)
    assert spans.traces == {request.get_span_context().trace_id}
    start = spans.one(f"start {made.name}")
    first, second = spans.named(f"run {made.name}")
    assert is_child(start, request)
    assert is_child(first, start)
    assert is_child(second, start)
    assert outcomes([first, second]) == ["left", "completed"]
    tries = spans.named("step shaky")
    assert outcomes(tries) == ["failed", "completed"]
    assert all(is_child(span, first) for span in [*tries, spans.one("read steady")])
    assert is_child(spans.one("transaction write"), second)
    assert seen == format(spans.one("read steady").context.span_id, "x"), (
        "the body sees its span as the current one"
    )
    assert len(spans.all) == 8, "replays add nothing"


def test_spans_say_which_run_step_and_try_they_are_of_and_nothing_that_is_worked_on(dsn, spans):
    with App(dsn, include=[work], interceptors=[Tracing(spans.provider)]) as app, app.worker():
        run = app.start(work.options(key="k"))
        run.send(go, 1)
        run.result(SOON)
    failed = spans.named("step shaky")[0]
    assert failed.attributes == {
        "pgflow.run.key": "k",
        "pgflow.run.id": 1,
        "pgflow.workflow": "work",
        "pgflow.generation": 1,
        "pgflow.step": "shaky",
        "pgflow.effect": "step",
        "pgflow.call": 1,
        "pgflow.attempt": 1,
        "pgflow.outcome": "failed",
        "error.type": "OSError",
        "pgflow.idempotency_key": failed.attributes["pgflow.idempotency_key"],
    }
    assert failed.attributes["pgflow.idempotency_key"].endswith("/shaky/1")
    assert failed.status.status_code is trace.StatusCode.ERROR
    assert not any("hunter2" in span.to_json() for span in spans.all)


def test_the_text_of_errors_is_recorded_where_it_is_asked_for(dsn, spans):
    @workflow
    async def fails() -> None:
        await shaky.options(retries=1)("a text")

    app = App(dsn, include=[fails], interceptors=[Tracing(spans.provider, record_exceptions=True)])
    with app, app.worker():
        with pytest.raises(RunFailed):
            app.start(fails).result(SOON)
    attempt, activation = spans.one("step shaky"), spans.one(f"run {fails.name}")
    assert [event.attributes["exception.message"] for event in attempt.events] == ["a text"]
    assert outcomes([attempt, activation]) == ["failed", "failed"]


@workflow
async def child() -> str:
    return await steady.aio()


@workflow
async def parent() -> list[str]:
    await steady.aio()
    await go.wait()
    first = await pgflow.run_child(child)
    return [first, *(await pgflow.map(child_of, ["a", "b"])).values]


@workflow
async def child_of(item: str) -> str:
    return item


def test_children_are_in_the_trace_of_the_activation_that_asked_for_them(dsn, conn, spans):
    conn.execute("select pgflow.start_run('parent', '{}', 'p')")
    with (
        App(dsn, include=[parent, child, child_of], interceptors=[Tracing(spans.provider)]) as app,
        app.worker(),
    ):
        run = app.get("p", parent)
        wait_until(lambda: spans.named("run parent"), "the parent waits")
        run.send(go, 1)
        run.result(SOON)
    assert len(spans.traces) == 1, "although nobody had a trace when it was started"
    activations = spans.named("run parent")
    for span in [spans.one("run child"), *spans.named("run child_of")]:
        assert any(is_child(span, activation) for activation in activations[1:])


def test_what_a_step_starts_hangs_below_its_span(dsn, spans):
    app = App(dsn, interceptors=[Tracing(spans.provider)])

    @step
    def starts() -> None:
        app.start(child).result(SOON)

    @workflow
    async def indirect() -> None:
        await starts.aio()

    app.include(indirect, child)
    with app, app.worker():
        app.start(indirect).result(SOON)
    assert is_child(spans.one("start child"), spans.one("step starts"))
    assert is_child(spans.one("run child"), spans.one("start child"))


@workflow
async def countdown(n: int) -> None:
    await steady.aio()
    if n > 1:
        pgflow.continue_as_new(n - 1)


def test_every_generation_of_a_run_is_in_its_trace(dsn, spans):
    with App(dsn, include=[countdown], interceptors=[Tracing(spans.provider)]) as app, app.worker():
        app.start(countdown, 3).result(SOON)
    found = spans.named("run countdown")
    assert [span.attributes["pgflow.generation"] for span in found] == [1, 2, 3]
    assert outcomes(found) == ["continued", "continued", "completed"]
    assert len(spans.traces) == 1


@workflow
async def phases(note: str) -> None:
    with provider_of_phases[note].tracer.start_as_current_span("before"):
        await steady.aio()
    await go.wait()
    with provider_of_phases[note].tracer.start_as_current_span("after"):
        await steady.aio()


provider_of_phases: dict[str, Spans] = {}


@pytest.mark.full
async def test_what_a_workflow_traces_itself_is_not_traced_again_by_a_replay(aflow, spans):
    provider_of_phases["x"] = spans
    aflow.include(phases)
    aflow.app._interceptors.append(Tracing(spans.provider))
    run = await settle(aflow, phases, "x")
    await recover(aflow)
    await run.send(go, 1)
    await run.result(SOON)
    assert len(spans.named("before")) == len(spans.named("after")) == 1
    assert is_child(spans.one("before"), spans.named("run phases")[0])
    before = len(spans.all)
    replay_all(aflow.app)
    assert len(spans.all) == before, "a replay that only checks is no activation"


@contextmanager
def global_context(**carrier: str) -> Iterator[None]:
    """As an instrumented web framework sets it, in a process without an SDK."""
    from opentelemetry import context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    token = context.attach(TraceContextTextMapPropagator().extract(carrier))
    try:
        yield
    finally:
        context.detach(token)


@pytest.mark.full
def test_without_an_sdk_nothing_is_made_but_a_trace_from_outside_is_passed_on(dsn, conn, spans):
    trace_id, span_id = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    with App(dsn, include=[child], interceptors=[Tracing(trace.NoOpTracerProvider())]) as app:
        with app.worker():
            app.start(child.options(key="untraced")).result(SOON)
        with global_context(traceparent=f"00-{trace_id}-{span_id}-01", tracestate="a=b"):
            app.start(child.options(key="traced", metadata={"own": 1}))
    metadata = conn.execute(
        "select key, metadata from pgflow.run join pgflow.run_key using (key) order by run_id"
    ).fetchall()
    assert metadata == [
        ("untraced", None),
        ("traced", {"own": 1, "traceparent": f"00-{trace_id}-{span_id}-01", "tracestate": "a=b"}),
    ]
    with App(dsn, include=[child], interceptors=[Tracing(spans.provider)]) as app, app.worker():
        app.get("traced", child).result(SOON)
    assert format(spans.one("run child").context.trace_id, "032x") == trace_id
    assert format(spans.one("run child").parent.span_id, "016x") == span_id


def test_what_the_caller_does_not_sample_is_not_sampled(dsn, spans):
    unsampled = trace.NonRecordingSpan(
        trace.SpanContext(7, 8, is_remote=True, trace_flags=trace.TraceFlags(0))
    )
    with App(dsn, include=[child], interceptors=[Tracing(spans.provider)]) as app, app.worker():
        with trace.use_span(unsampled):
            app.start(child).result(SOON)
    assert spans.all == []


@pytest.mark.parametrize("ratio", [0.0, 1.0])
def test_runs_without_a_trace_of_their_own_are_sampled_as_others_are(dsn, conn, ratio):
    spans = Spans(sampler=ParentBased(TraceIdRatioBased(ratio)))
    conn.execute("select pgflow.start_run('child', '{}', 'c')")
    with App(dsn, include=[child], interceptors=[Tracing(spans.provider)]) as app, app.worker():
        app.get("c", child).result(SOON)
    assert [span.name for span in spans.all] == (["run child", "read steady"] if ratio else [])


def test_metadata_that_is_no_trace_is_none(dsn, conn, spans):
    conn.execute(
        """select pgflow.start_run('child', '{}', 'c', metadata => '{"traceparent": 7, "tracestate": "?"}')"""
    )
    with App(dsn, include=[child], interceptors=[Tracing(spans.provider)]) as app, app.worker():
        app.get("c", child).result(SOON)
    assert outcomes([spans.one("run child")]) == ["completed"]


def test_a_cancelled_run_is_no_error(dsn, conn, spans):
    with (
        App(dsn, include=[work], interceptors=[Tracing(spans.provider)]) as app,
        app.worker(poll_seconds=0.05),
    ):
        run = app.start(work.options(key="k"))
        wait_until(lambda: run.status() == "waiting", "the run waits")
        run.cancel()
        wait_until(lambda: run.status() == "cancelled", "the run is cancelled")
    last = spans.named("run work")[-1]
    assert (outcomes([last]), last.status.status_code) == (["cancelled"], trace.StatusCode.UNSET)
    assert run_row(conn, "k", "status") == ("cancelled",)


@pytest.mark.full
def test_processes_that_work_on_a_run_one_after_another_and_die_add_to_one_trace(
    dsn, conn, tmp_path, monkeypatch
):
    file = tmp_path / "spans"
    monkeypatch.setenv("SPANS_FILE", str(file))
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    conn.execute(
        "select pgflow.start_run('travelling', %s::json, 'k', metadata => %s::jsonb)",
        (
            json.dumps({"path": str(tmp_path / "died")}),
            json.dumps({"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}),
        ),
    )
    with worker(dsn, module="otel_jobs") as one:
        wait_until(lambda: run_row(conn, "k", "status") == ("waiting",), "the run waits")
        conn.execute("select pgflow.send_signal('k', 'go', '1')")
        one.process.wait(HANG_SECONDS)
    with worker(dsn, module="otel_jobs"):
        wait_until(
            lambda: run_row(conn, "k", "status") == ("completed",), "the run is completed", 20
        )
    found = [json.loads(text) for text in file.read_text().splitlines()]
    assert {span["context"]["trace_id"] for span in found} == {f"0x{trace_id}"}
    assert [(span["name"], span["attributes"]["pgflow.outcome"]) for span in found] == [
        ("step first", "completed"),
        ("run travelling", "left"),
        ("step die_once", "completed"),
        ("step second", "completed"),
        ("run travelling", "completed"),
    ], "what had not ended died with its worker"


@pytest.mark.full
def test_without_the_extra_the_import_says_what_to_install():
    code = "import sys; sys.modules['opentelemetry'] = None; import pgflow.otel"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert 'pip install "pgflow-engine[otel]"' in done.stderr
