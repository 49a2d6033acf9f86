"""The dialect of DBOS."""

from __future__ import annotations

import libcst as cst
import libcst.matchers as m

from pgflow.peers.base import (
    Arguments,
    Translator,
    arguments_of,
    dotted,
    expression,
    plain,
    rest_of,
    text_of,
)


def state(_: Translator, given: Arguments, _is_async: bool) -> str | None:
    """``set_event("key", value)`` as ``set_state(key=value)``, if the key is written there."""
    key, value = given.get("0", given.get("key")), given.get("1", given.get("value"))
    if value is None or not isinstance(key, cst.SimpleString):
        return None
    name = key.evaluated_value
    if isinstance(name, str) and name.isidentifier():
        return f"pgflow.set_state({name}={text_of(value)})"
    return f"pgflow.set_state(**{{{text_of(key)}: {text_of(value)}}})"


def receive(_: Translator, given: Arguments, is_async: bool) -> str:
    """``recv(topic, timeout_seconds)`` as the wait for a signal of that name."""
    topic = given.get("0", given.get("topic"))
    limit = given.get("1", given.get("timeout_seconds"))
    name = "'default'" if topic is None else text_of(topic)
    timeout = "60" if limit is None else text_of(limit)
    return f"pgflow.Signal({name}, object){'' if is_async else '.sync'}.wait(timeout={timeout})"


def dbos_send(_: Translator, given: Arguments, is_async: bool) -> str | None:
    """``send(id, message, topic)`` as a signal to another run."""
    values = [
        given.get(str(n), given.get(word))
        for n, word in enumerate(("destination_id", "message", "topic"))
    ]
    if values[0] is None or values[1] is None:
        return None
    topic = "'default'" if values[2] is None else text_of(values[2])
    target = f"{text_of(values[0])}, pgflow.Signal({topic}, object), {text_of(values[1])}"
    return f"pgflow.{'' if is_async else 'sync.'}send({target})"


class Dbos(Translator):
    """The dialect of DBOS."""

    package = "dbos"
    roots = ("DBOS",)
    decorators = {  # noqa: RUF012
        "DBOS.workflow": "workflow",
        "DBOS.step": "step",
        "DBOS.transaction": "transaction",
        "DBOS.scheduled": "schedule",
    }
    calls = {  # noqa: RUF012
        "DBOS.sleep": plain("sync.sleep", colour="sync"),
        "DBOS.sleep_async": plain("sleep", colour="async"),
        "DBOS.start_workflow": plain("sync.start_child", colour="sync"),
        "DBOS.start_workflow_async": plain("start_child", colour="async"),
        "DBOS.recv": receive,
        "DBOS.recv_async": receive,
        "DBOS.send": dbos_send,
        "DBOS.send_async": dbos_send,
        "DBOS.set_event": state,
        "DBOS.set_event_async": state,
        "DBOS.write_stream": plain("emit"),
        "DBOS.write_stream_async": plain("emit"),
        "DBOS.close_stream": plain("close_stream"),
        "DBOS.close_stream_async": plain("close_stream"),
        "DBOS.patch": plain("patched"),
        "DBOS.deprecate_patch": plain("deprecate_patch"),
    }
    names = {  # noqa: RUF012
        "DBOS.logger": "pgflow.logger",
        "DBOS.workflow_id": "pgflow.run_info().key",
    }
    advice = {  # noqa: RUF012
        "DBOS.start_workflow": "outside of a workflow it is app.start(workflow, ...)",
        "DBOS.start_workflow_async": "outside of a workflow it is app.start(workflow, ...)",
        "DBOS.recv": "raises TimeoutError where recv returned None; give the signal its type",
        "DBOS.recv_async": "raises TimeoutError where recv returned None; give the signal its type",
        "DBOS.send": "outside of a workflow it is app.send(key, signal, value)",
        "DBOS.send_async": "outside of a workflow it is app.send(key, signal, value)",
        "DBOS.launch": "declare app = pgflow.App(include=[...]) and run `pgflow workers`",
        "DBOS.destroy": "leave the context of the app instead",
        "DBOS.get_event": "read run.state(), or run.query(name)",
        "DBOS.retrieve_workflow": "app.get(key, workflow)",
        "DBOS.cancel_workflow": "run.cancel(): the code may clean up, and it is final",
        "DBOS.fork_workflow": "app.fork(key, ...)",
        "DBOS.list_workflows": "pgflow.inspect, or the view pgflow.runs",
    }
    elsewhere = {  # noqa: RUF012
        "SetWorkflowID": "start the run with workflow.options(key=...)",
        "Queue": "App(queues=[pgflow.queues.Queue(name, concurrency=..., per_worker=...)])",
        "Debouncer": "workflow.options(key=..., debounce=...)",
        "DBOSClient": "pgflow.Client(dsn) for another process",
        "DBOS": "declare app = pgflow.App(include=[...])",
        "DBOSConfig": "pgflow.App(dsn) takes a connection string",
    }

    def __init__(self) -> None:
        super().__init__()
        self._workflows: set[str] = set()

    def visit_Module(self, node: cst.Module) -> None:  # noqa: N802
        """Find the workflows, which calls turn into children."""
        is_workflow = m.Decorator(decorator=m.Call(func=m.Attribute(attr=m.Name("workflow"))))
        found = m.findall(
            node, m.FunctionDef(decorators=[m.ZeroOrMore(), is_workflow, m.ZeroOrMore()])
        )
        self._workflows = {one.name.value for one in found if isinstance(one, cst.FunctionDef)}

    def decorate(self, ours: str, given: Arguments) -> tuple[list[str], list[str]]:
        """Retries are said in one argument; without them a step is tried once."""
        kept, left = super().decorate(ours, given)
        if ours == "schedule":
            return [text_of(given["0"])] if "0" in given else [], [n for n in left if n != "0"]
        retry = {"retries_allowed", "max_attempts", "interval_seconds", "backoff_rate"}
        if ours != "step":
            return kept, left
        allowed = given.get("retries_allowed")
        if allowed is None or text_of(allowed) != "True":
            return [*kept, "retries=1"], [n for n in left if n not in retry]
        words = {
            "max_attempts": "max_attempts",
            "interval_seconds": "first_delay",
            "backoff_rate": "backoff",
        }
        said = [f"{word}={text_of(given[n])}" for n, word in words.items() if n in given]
        return [*kept, f"retries=pgflow.Retries({', '.join(said)})"], [
            n for n in left if n not in retry
        ]

    def leave_Call(self, original_node: cst.Call, updated_node: cst.Call) -> cst.BaseExpression:  # noqa: N802
        """A call of a workflow is a child, and classes of the peer are noted."""
        name = dotted(updated_node.func)
        if name in self._workflows and self._async:
            self.translated += 1
            given = rest_of(arguments_of(updated_node), 0)
            twin = "run_child" if self.is_async else "sync.run_child"
            return expression(f"pgflow.{twin}({name}{', ' if given else ''}{given})")
        if name in self.elsewhere:
            self.note(original_node, f"{name}(...)", self.elsewhere[name])
        return super().leave_Call(original_node, updated_node)
