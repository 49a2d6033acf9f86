"""Wrong declarations, whatever the workflow does: effects that cannot be settled, names, places."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from pgflow.lint.definitions import DECORATORS, Declared, Kind
from pgflow.lint.findings import Finding
from pgflow.lint.module import Module
from pgflow.lint.rules.base import Rule

MAX_BYTES = 255
STEPS = tuple(kind for kind in Kind if kind is not Kind.WORKFLOW)


class EffectWithoutSettle(Rule):
    """PF302."""

    code = "PF302"
    title = "effect without settle"
    why = (
        "after a crash in the middle its outcome is unknown, "
        "and the run is stuck until a person does"
    )
    instead = "declare @NAME.settle, which asks the other side"
    bad = """import pgflow

@pgflow.effects.effect(risk="irreversible")
async def announce(text: str) -> str:
    return text
"""
    good = """import pgflow

@pgflow.effects.effect(risk="irreversible")
async def announce(text: str) -> str:
    return text

@announce.settle
async def find_announcement(text: str) -> \
pgflow.effects.Confirmed[str] | pgflow.effects.Absent | pgflow.effects.StillUnknown:
    return pgflow.effects.StillUnknown()
"""

    def check(self, module: Module) -> Iterator[Finding]:
        """Effects that cannot be taken back, or carry no key, and have no settle."""
        for found in module.definitions.of_kind(Kind.EFFECT):
            reason = _reason_to_settle(found)
            if reason and "settle" not in found.hooks:
                advice = self.instead.replace("NAME", found.name.rpartition(".<locals>.")[2])
                yield self.found(
                    module, found.at, f"effect {found.label} is {reason} and has no settle", advice
                )


def _reason_to_settle(effect: Declared) -> str:
    reasons = []
    if _constant(effect, "risk") == "irreversible":
        reasons.append("irreversible")
    if _constant(effect, "keyed") is False:
        reasons.append("not keyed")
    return " and ".join(reasons)


def _constant(found: Declared, option: str) -> object:
    given = found.options.get(option)
    return given.value if isinstance(given, ast.Constant) else None


class CompensableWithoutCompensate(Rule):
    """PF303."""

    code = "PF303"
    title = "compensable effect without compensate"
    why = "a saga that fails cannot take it back"
    instead = "declare @NAME.compensate, or another risk, or give its saga a planner"
    bad = """import pgflow

@pgflow.effects.effect(risk="compensable")
async def charge(cents: int) -> str:
    return f"charge of {cents}"
"""
    good = """import pgflow

@pgflow.effects.effect(risk="compensable")
async def charge(cents: int) -> str:
    return f"charge of {cents}"

@charge.compensate
async def refund(charge_id: str, cents: int) -> None:
    pass
"""

    def check(self, module: Module) -> Iterator[Finding]:
        """Effects that say they can be taken back, and do not say how; where a saga has a planner,
        that is asked.
        """
        if _has_planner(module):
            return
        for found in module.definitions.of_kind(Kind.EFFECT):
            if _constant(found, "risk") == "compensable" and "compensate" not in found.hooks:
                advice = self.instead.replace("NAME", found.name.rpartition(".<locals>.")[2])
                yield self.found(
                    module,
                    found.at,
                    f"effect {found.label} is compensable and has no compensate",
                    advice,
                )


def _has_planner(module: Module) -> bool:
    return any(
        keyword.arg == "planner"
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
    )


class LongName(Rule):
    """PF304."""

    code = "PF304"
    title = "name too long"
    why = "the decorator refuses it"
    instead = "pass a shorter name="
    bad = """import pgflow

@pgflow.step(
    name="ask the carrier that is responsible for this postal code \
for a parcel of the size that the order needs, "
    "on the first day on which somebody is at home to take it, and if there is none in this week, "
    "on any day of the next one, and tell the customer about it by mail, \
or by phone where there is no address"
)
async def book(code: str) -> str:
    return code
"""
    good = """import pgflow

@pgflow.step(name="ask the carrier for a parcel")
async def book(code: str) -> str:
    return code
"""

    def check(self, module: Module) -> Iterator[Finding]:
        """Names of more than 255 bytes."""
        for found in module.definitions.declared.values():
            name = found.label
            if not _is_written_out(found):
                continue  # made at run time
            if len(name.encode("utf-8", "surrogatepass")) > MAX_BYTES:
                yield self.found(
                    module, found.at, f"the name of {found.kind} {name} has more than 255 bytes"
                )


class NestedStep(Rule):
    """PF305."""

    code = "PF305"
    title = "step inside a function"
    why = "it is made anew by every call, and holds on to variables that no journal has"
    instead = "define it at the top of the module, and pass what it needs as arguments"
    bad = """import pgflow

@pgflow.workflow
async def fulfil(order: int) -> str:
    @pgflow.step
    async def ship() -> str:
        return f"parcel {order}"

    return await ship()
"""
    good = """import pgflow

@pgflow.step
async def ship(order: int) -> str:
    return f"parcel {order}"

@pgflow.workflow
async def fulfil(order: int) -> str:
    return await ship(order)
"""

    def check(self, module: Module) -> Iterator[Finding]:
        """Steps that are defined in workflow code, and lambdas as steps."""
        in_workflow = {id(node): region for node, region in module.nodes()}
        for found in module.definitions.of_kind(*STEPS):
            around = module.names.function_around(found.at)
            region = in_workflow.get(id(around)) if around is not None else None
            if region is not None and not isinstance(found.body, ast.Lambda):
                yield self.found(
                    module, found.at, f"{found.kind} {found.label} is defined {region.place}"
                )
        for node in module.names.calls:
            kind = _kind_of_lambda(node, module)
            if kind is not None:
                yield self.at(
                    module,
                    node,
                    f"a lambda is no {kind}: it has no name for the journal; define a function",
                )


SCHEDULES = ("pgflow.schedule", "pgflow._flow.schedules.schedule")


class WrongSchedule(Rule):
    """PF306."""

    code = "PF306"
    title = "schedule that names no slots"
    why = "the module cannot be imported, so no worker starts"
    instead = "write five fields: minute, hour, day of month, month, day of week"
    bad = """import pgflow

@pgflow.schedule("30 25 * * *")
@pgflow.workflow
async def nightly() -> None: ...
"""
    good = bad.replace('25 * * *"', '2 * * *", tz="Europe/London"')

    def check(self, module: Module) -> Iterator[Finding]:
        """Calls of ``schedule`` whose expressions and zone are written out."""
        for node in module.names.calls:
            if module.names.resolve(node.func) not in SCHEDULES:
                continue
            given = {word.arg: word.value for word in node.keywords if word.arg in ("cron", "tz")}
            if node.args:
                given["cron"] = node.args[0]
            try:
                cron, tz = (
                    ast.literal_eval(given.get(name, ast.Constant(default)))
                    for name, default in (("cron", None), ("tz", "UTC"))
                )
            except ValueError:
                continue  # it is computed
            if cron is None:
                continue
            if refusal := _refusal(cron, tz):
                yield self.at(module, node, f"{refusal}; {self.instead}")


def _refusal(cron: Any, tz: Any) -> str:
    """Return what ``schedule`` says of such a schedule; empty if it takes it."""
    from pgflow import InvalidArgument, schedule  # most modules have none, and need no engine here

    try:
        schedule(cron, tz=tz)
    except (InvalidArgument, TypeError, AttributeError) as error:
        return str(error)
    return ""


class SameName(Rule):
    """PF307."""

    code = "PF307"
    title = "two workflows of one name"
    why = "an app that includes the module raises DefinitionError, so no worker starts"
    instead = "give one another name"
    bad = """import pgflow

@pgflow.workflow(name="fulfil")
async def ship(order: int) -> None: ...

@pgflow.workflow(name="fulfil")
async def pack(order: int) -> None: ...
"""
    good = """import pgflow

@pgflow.workflow(name="fulfil")
async def ship(order: int) -> None: ...

@pgflow.workflow
async def pack(order: int) -> None: ...
"""

    def check(self, module: Module) -> Iterator[Finding]:
        """Workflows of the module itself whose names are written out; of what a function makes,
        one may be included, or none.
        """
        first: dict[str, Declared] = {}
        for found in module.definitions.workflows():
            if found.name.isidentifier() and _is_written_out(found):
                known = first.setdefault(found.label, found)
                if known is not found:
                    yield self.found(
                        module,
                        found.at,
                        f"workflows {known.name} and {found.name} are both named {found.label}",
                    )


def _is_written_out(found: Declared) -> bool:
    """Return True if the name is a literal in the text."""
    return isinstance(found.options.get("name", ast.Constant(found.name)), ast.Constant)


def _kind_of_lambda(node: ast.Call, module: Module) -> Kind | None:
    match node:
        case ast.Call(func=function, args=[ast.Lambda(), *_]):
            path = module.names.resolve(function)
            return DECORATORS.get(path.replace("()", "")) if path is not None else None
        case _:
            return None
