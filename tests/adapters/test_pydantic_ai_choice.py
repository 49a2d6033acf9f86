"""The model of a request is the one that the code of the workflow has chosen, by whatever way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from looks import Looks, refusal
from scripted import durable, model

import pgflow
from pgflow.agent.pydantic_ai import PgflowDurability

from pydantic_ai import Agent, FunctionToolset, Tool  # isort: skip
from pydantic_ai.capabilities import (  # isort: skip
    AbstractCapability,
    Capability,
    Instrumentation,
    NativeTool,
    ResolveModelId,
    SelectModel,
)
from pydantic_ai.exceptions import UserError  # isort: skip
from pydantic_ai.models.fallback import FallbackModel  # isort: skip
from pydantic_ai.models.function import FunctionModel  # isort: skip
from pydantic_ai.models.instrumented import InstrumentationSettings  # isort: skip
from pydantic_ai.models.wrapper import WrapperModel  # isort: skip
from pydantic_ai.native_tools import WebSearchTool  # isort: skip
from pydantic_ai.profiles import ModelProfile  # isort: skip
from pydantic_ai.toolsets import ExternalToolset  # isort: skip

looks = Looks()
own, other = model("own", name="own"), model("other", name="other")
wrapped = WrapperModel(model("wrapped", name="inner"))
main = durable(own, name="main", models={"other": other, "wrapped": wrapped})


def resolve(ctx: Any, model_id: str) -> Any:
    """Know the alias of a tenant, whose model depends on the dependencies of the run."""
    if model_id == "broken":
        raise ValueError("the resolver broke")
    return model(f"for {ctx.deps}", name="tenant") if model_id == "tenant" else None


@dataclass
class Swap(AbstractCapability[Any]):
    """Puts another model, or a wrapper, in the place of that of a request."""

    by: Any

    async def before_model_request(self, ctx: Any, request_context: Any) -> Any:
        request_context.model = self.by(request_context.model)
        return request_context


tenants = durable(own, name="tenants", deps_type=str, more=[ResolveModelId(resolve)])


@looks(
    ["other", "other", "own", "own", "wrapped"],
    [
        "model.request.other",
        "model.request.other",
        "model.request",
        "model.request",
        "model.request.wrapped",
    ],
)
async def by_name_or_instance() -> list[str]:
    chosen: list[Any] = ["other", other, own, WrapperModel(own), WrapperModel(wrapped)]
    return [(await main.run("hi", model=each)).output for each in chosen]


@looks(["other", "other"])
async def by_override() -> list[str]:
    outputs = []
    for each in ("other", other):
        with main.override(model=each):
            outputs.append((await main.run("hi")).output)
    return outputs


@looks(["own", "other", "own"])
def by_name_in_a_thread() -> list[str]:
    return [main.run_sync("hi", model=each).output for each in (None, "other", "default")]


@looks("was not registered with `PgflowDurability`")
async def an_unknown_instance() -> str:
    return await refusal(main.run("hi", model=model("?", name="foreign")))


@looks("was not registered with `PgflowDurability`")
async def an_unknown_instance_by_override() -> str:
    with main.override(model=model("?", name="foreign")):
        return await refusal(main.run("hi"))


@looks("was not registered with `PgflowDurability`")
async def the_inside_of_a_registered_wrapper() -> str:
    return await refusal(main.run("hi", model=wrapped.wrapped))


selecting = durable(own, name="selecting", models={"other": other},
                    more=[SelectModel(lambda ctx: other)])  # fmt: skip
aliasing = durable(own, name="aliasing", models={"other": other},
                   more=[SelectModel(lambda ctx: "other")])  # fmt: skip


@looks(["other", "other"])
async def by_a_selector() -> list[str]:
    return [(await each.run("hi")).output for each in (selecting, aliasing)]


@looks(["for ann", "for bob", "success (no tool calls)"])
async def by_an_alias_that_depends_on_the_tenant() -> list[str]:
    outputs = [(await tenants.run("hi", model="tenant", deps=who)).output for who in ("ann", "bob")]
    return [*outputs, (await tenants.run("hi", model="test", deps="ann")).output]


by_default = Agent("tenant", name="by_default", deps_type=str,
                   capabilities=[Swap(WrapperModel), ResolveModelId(resolve), PgflowDurability()])  # fmt: skip
selected = durable(own, name="selected", deps_type=str,
                   more=[SelectModel(lambda ctx: "tenant"), ResolveModelId(resolve)])  # fmt: skip


@looks(["for ann", "for ann"])
async def by_an_alias_that_is_the_default_or_selected() -> list[str]:
    return [(await each.run("hi", deps="ann")).output for each in (by_default, selected)]


@looks("the resolver broke")
async def an_error_of_a_resolver_is_itself() -> str:
    try:
        return str((await tenants.run("hi", model="broken", deps="ann")).output)
    except ValueError as error:
        return str(error)


def forget(ctx: Any, model_id: str) -> Any:
    """Know an alias in the code of the workflow alone, as a worker of another release might."""
    try:
        in_body = pgflow.run_info().step is not None
    except pgflow.errors.NotInRunError:
        in_body = False
    return None if in_body or model_id != "stale" else model("?", name="stale")


stale = durable(own, name="stale", more=[ResolveModelId(forget)])


@looks("could not be rebuilt on the pgflow worker")
async def an_alias_that_the_worker_does_not_know() -> str:
    return await refusal(stale.run("hi", model="stale"))


by_string = Agent("test", name="by_string", capabilities=[PgflowDurability()])


@looks(["success (no tool calls)"] * 2)
async def a_string_is_its_own_name() -> list[str]:
    return [(await by_string.run("hi", model=each)).output for each in (None, "test")]


observed = durable(own, name="observed", more=[Instrumentation(settings=InstrumentationSettings())])
swapped = durable(own, name="swapped", more=[Swap(lambda _: model("?", name="own"))])


@looks("own")
async def an_instrumented_default() -> str:
    return (await observed.run("hi")).output


@looks("was not registered with `PgflowDurability`")
async def an_instance_that_a_capability_puts_in_its_place() -> str:
    return await refusal(swapped.run("hi"))


fallback = durable(FallbackModel(model(lambda *_: 1 / 0, name="first"), other, fallback_on=(ZeroDivisionError,)),
                   name="fallback")  # fmt: skip


@looks("other")
async def a_model_that_falls_back() -> str:
    return (await fallback.run("hi")).output


def tell(messages: Any, info: Any) -> Any:
    """Tell which tools of the provider and settings the model has been given."""
    from pydantic_ai.messages import ModelResponse, TextPart

    tools = [type(tool).__name__ for tool in info.model_request_parameters.native_tools]
    settings = dict(sorted((info.model_settings or {}).items()))
    return ModelResponse(parts=[TextPart(f"{tools} {settings}")])


searches = FunctionModel(
    tell,
    model_name="searches",
    profile=ModelProfile(supported_native_tools=frozenset({WebSearchTool})),
)
plain = FunctionModel(tell, model_name="plain")
natives = durable(plain, name="natives", models={"searches": searches}, more=[NativeTool(
    lambda ctx: WebSearchTool() if ctx.model.model_name == "searches" else None)])  # fmt: skip


@looks(["['WebSearchTool'] {}", "[] {}", "[] {'custom': 'x', 'max_tokens': 5}"])
async def tools_of_a_provider_and_settings() -> list[str]:
    settings: Any = {"max_tokens": 5, "custom": "x"}
    return [
        (await natives.run("hi", model="searches")).output,
        (await natives.run("hi")).output,
        (await natives.run("hi", model_settings=settings)).output,
    ]


by_registered = Agent("primary", name="by_registered",
                      capabilities=[PgflowDurability(models={"primary": own})])  # fmt: skip


@looks("own")
async def a_default_that_is_registered() -> str:
    return (await by_registered.run("hi")).output


@looks(["[]", "own"])
async def tools_of_a_provider_by_override_and_settings_that_no_journal_takes() -> list[str]:
    with natives.override(native_tools=[]):
        overridden = (await natives.run("hi", model="searches")).output
    settings: Any = {"odd": object()}
    return [overridden.split()[0], (await main.run("hi", model_settings=settings)).output]


async def test_a_request_goes_to_the_model_that_was_chosen(aflow):
    assert await looks.hold(aflow) == []


def test_a_capability_serves_several_agents_and_an_agent_has_one():
    shared = PgflowDurability()
    bound = [
        PgflowDurability.from_agent(Agent(own, name=name, capabilities=[shared])) for name in "ab"
    ]
    assert [each.name for each in bound] == ["a", "b"]
    assert shared.name == ""
    assert shared.get_ordering().position == "innermost"
    assert PgflowDurability.get_serialization_name() is None
    assert PgflowDurability().has_wrap_run_event_stream is False
    with pytest.raises(UserError):
        Agent(own, name="a", capabilities=[PgflowDurability(), PgflowDurability()])
    unnamed = PgflowDurability.from_agent(Agent(own, capabilities=[PgflowDurability(name="n")]))
    assert unnamed.name == "n"


def test_toolsets_that_are_steps_have_a_name_of_their_own():
    with pytest.raises(UserError, match="unique `id`"):
        durable("x", name="n", toolsets=[FunctionToolset([tell])])
    with pytest.raises(UserError, match="same `id` 'f'"):
        durable("x", name="n", toolsets=[FunctionToolset(id="f"), FunctionToolset(id="f")])
    with pytest.raises(UserError, match="wrap it explicitly"):
        durable("x", name="n", more=[lambda ctx: Capability()])
    shared = FunctionToolset[Any](id="f")
    far = ExternalToolset([Tool(resolve).tool_def])
    agent = durable(
        "x", name="n", toolsets=[shared, shared, far], more=[Capability(id="c", tools=[resolve])]
    )
    bound = PgflowDurability.from_agent(agent)
    assert set(bound._toolsets_by_id) == {"<agent>", "f", "c"}
