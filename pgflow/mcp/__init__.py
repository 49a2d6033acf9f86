"""A server of the Model Context Protocol: tools by which an assistant looks at runs, and mends them
where it may.

The database decides: tools read as the role that is connected, and orders are the client's own
verbs, each recorded with a name. An assistant reads texts that others wrote, so every tool says
that they are data, and every answer is bounded. Needs the extra `mcp`.
"""

from pgflow.mcp.server import make_server

__all__ = ["make_server"]
