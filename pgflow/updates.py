"""Updates: requests that a running workflow validates, applies and answers."""

from pgflow._client._async.updates import AsyncSentUpdate
from pgflow._client._sync.updates import SentUpdate
from pgflow._flow.messages import execute_update
from pgflow._flow.serving import serve
from pgflow._flow.updates import BoundUpdate, QueryHandler, UpdateHandler

__all__ = [
    "AsyncSentUpdate", "BoundUpdate", "QueryHandler", "SentUpdate", "UpdateHandler",
    "execute_update", "serve",
]  # fmt: skip
