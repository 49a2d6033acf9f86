"""Agents of pydantic-ai that go on where they were when their worker dies.

``PgflowDurability`` is a capability: you add it to an agent, and call ``agent.run()`` in a
workflow. Each request to a model is a decision of the run, with its model, tokens, cost and the
fingerprint of its prompt. Each tool call is a step that rests on the decision that asked for it,
and an approval is a gate. Outside of workflows the agent is as it was.

pydantic-ai is optional (extra ``pydantic-ai``), so nothing else of pgflow imports this.

Example::

    agent = Agent(model, name="support", capabilities=[PgflowDurability()])


    @pgflow.workflow
    async def answer(question: str) -> str:
        return (await agent.run(question)).output
"""

from pgflow.agent.pydantic_ai.approvals import Approvals
from pgflow.agent.pydantic_ai.capability import PgflowDurability
from pgflow.agent.pydantic_ai.events import read_token
from pgflow.agent.pydantic_ai.options import ModelOptions, StepOptions
from pgflow.agent.pydantic_ai.tools import as_tool

__all__ = [
    "Approvals", "ModelOptions", "PgflowDurability", "StepOptions", "as_tool", "read_token",
]  # fmt: skip
