"""The dialect of Temporal."""

from __future__ import annotations

from collections.abc import Callable

import libcst as cst
import libcst.matchers as m
from libcst.metadata import PositionProvider

from pgflow.peers.base import Arguments, Translator, arguments_of, plain, text_of


def execute(translator: Translator, given: Arguments, _is_async: bool) -> str | None:
    """``execute_activity(f, x, start_to_close_timeout=...)`` as ``f.options(timeout=...)(x)``."""
    if "0" not in given:
        return None
    known = {"start_to_close_timeout", "retry_policy", "args"}
    translator.left = [name for name in given if not name.isdigit() and name not in known]
    options = []
    if (timeout := given.get("start_to_close_timeout")) is not None:
        options.append(f"timeout={text_of(timeout)}")
    policy = given.get("retry_policy")
    said = arguments_of(policy) if isinstance(policy, cst.Call) else {}
    if policy is not None and {*said} != {"maximum_attempts"}:
        translator.left.append("retry_policy")
    if (most := said.get("maximum_attempts")) is not None:
        options.append(f"retries={text_of(most)}")
    called = text_of(given["0"]) + (f".options({', '.join(options)})" if options else "")
    return f"{called}({_listed(given)})"


def child(verb: str) -> Callable[[Translator, Arguments, bool], str | None]:
    """Return the maker of a child: ``execute_child_workflow(W.run, x, id=...)``."""

    def make(translator: Translator, given: Arguments, _is_async: bool) -> str | None:
        if "0" not in given:
            return None
        translator.left = [n for n in given if not n.isdigit() and n not in ("id", "args")]
        workflow = text_of(given["0"]).removesuffix(".run")
        if (key := given.get("id")) is not None:
            workflow += f".options(key={text_of(key)})"
        listed = _listed(given)
        return f"pgflow.{verb}({workflow}{', ' if listed else ''}{listed})"

    return make


def _listed(given: Arguments) -> str:
    """Return the arguments of an activity or child: by position, or in ``args=[...]``."""
    many = given.get("args")
    if isinstance(many, cst.List):
        return ", ".join(text_of(one.value) for one in many.elements)
    return ", ".join(
        text_of(value) for name, value in given.items() if name.isdigit() and name != "0"
    )


class Temporal(Translator):
    """The dialect of Temporal. A class with one method becomes the function of a workflow."""

    package = "temporalio"
    roots = ("workflow", "activity")
    decorators = {"activity.defn": "step"}  # noqa: RUF012
    calls = {  # noqa: RUF012
        "workflow.execute_activity": execute,
        "workflow.execute_local_activity": execute,
        "workflow.execute_activity_method": execute,
        "workflow.execute_child_workflow": child("run_child"),
        "workflow.start_child_workflow": child("start_child"),
        "workflow.sleep": plain("sleep"),
        "workflow.now": plain("now"),
        "workflow.uuid4": plain("uuid"),
        "workflow.patched": plain("patched"),
        "workflow.deprecate_patch": plain("deprecate_patch"),
        "workflow.continue_as_new": plain("continue_as_new"),
        "activity.heartbeat": plain("heartbeat"),
    }
    names = {"workflow.logger": "pgflow.logger", "activity.logger": "pgflow.logger"}  # noqa: RUF012
    advice = {  # noqa: RUF012
        "workflow.defn": "its state and handlers need a hand: see docs/coming-from/temporal.md",
        "workflow.run": "make it a function under @pgflow.workflow",
        "workflow.signal": "pgflow.Signal(name, type), awaited in the code, or @workflow.on_signal",
        "workflow.query": "publish by pgflow.set_state(...), read by run.query(name)",
        "workflow.update": "@workflow.update, taken by pgflow.updates.serve(state)",
        "workflow.wait_condition": "wait for the signal that makes the condition true",
        "workflow.info": "pgflow.run_info()",
        "workflow.random": "pgflow.random() is a number, pgflow.uuid() an id",
        "workflow.unsafe": "imports need no block: there is no sandbox",
        "activity.info": "pgflow.run_info()",
    }
    elsewhere = {"RetryPolicy": "retries= of the call or of the step"}  # noqa: RUF012

    def leave_ClassDef(  # noqa: N802
        self, original_node: cst.ClassDef, updated_node: cst.ClassDef
    ) -> cst.ClassDef | cst.FunctionDef:
        """Make the function of a class that has nothing but its ``run``."""
        defn = [
            one for one in original_node.decorators if text_of(one).startswith("@workflow.defn")
        ]
        if not defn:
            return updated_node
        methods = [one for one in updated_node.body.body if isinstance(one, cst.FunctionDef)]
        if len(methods) != 1 or len(updated_node.body.body) != 1:
            return updated_node
        run = methods[0]
        uses_self = m.findall(run.body, m.Name("self"))
        if uses_self or not run.params.params:
            return updated_node
        self.translated += 1
        own = (original_node, *m.findall(original_node, m.Decorator()))
        lines = {self.get_metadata(PositionProvider, node).start.line for node in own}
        self.notes = [
            note for note in self.notes
            if note.line not in lines or note.what not in ("workflow.defn", "workflow.run")
        ]  # fmt: skip
        return run.with_changes(
            name=updated_node.name,
            params=run.params.with_changes(params=run.params.params[1:]),
            decorators=[cst.Decorator(cst.parse_expression("pgflow.workflow"))],
            leading_lines=updated_node.leading_lines,
        )
