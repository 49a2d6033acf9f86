"""The Model Context Protocol, both ways.

As a server: tools by which an assistant looks at runs, and repairs them if you allow it
(`make_server`), and workflows as tools (`add_workflows`). The database decides: tools read as the
connected role, and orders are the client's own verbs, each recorded with a name. An assistant reads
texts that others wrote, so every tool marks them as data, and every answer is bounded.

As a client: tools of other servers as steps of a workflow (`RemoteTools`). Needs the extra `mcp`.
"""

from pgflow.mcp.calling import RemoteTools, ServerUnreachable, ToolFailed, ToolRefused
from pgflow.mcp.server import add_workflows, make_server

__all__ = [
    "RemoteTools", "ServerUnreachable", "ToolFailed", "ToolRefused", "add_workflows", "make_server",
]  # fmt: skip
