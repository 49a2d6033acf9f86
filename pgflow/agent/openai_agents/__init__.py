"""The OpenAI Agents SDK on pgflow: ``pip install 'pgflow-engine[openai-agents]'``.

``run`` is the Runner of the SDK in a workflow: each request to a model, each call of a function
tool and each guardrail is a step, and a tool that needs approval is a gate. ``PgflowSession`` keeps
conversations in the database, in a workflow and outside.
"""

from pgflow.agent.openai_agents.runner import durable, run
from pgflow.agent.openai_agents.session import PgflowSession

__all__ = ["PgflowSession", "durable", "run"]
