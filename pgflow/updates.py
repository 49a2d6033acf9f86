"""Updates: requests that a running workflow validates, applies and answers."""

from pgflow._client._async.updates import AsyncSentUpdate
from pgflow._client._sync.updates import SentUpdate
from pgflow._flow.messages import execute_update
from pgflow._flow.updates import BoundUpdate, UpdateHandler, serve

__all__ = [
    "AsyncSentUpdate", "BoundUpdate", "SentUpdate", "UpdateHandler", "execute_update", "serve",
]  # fmt: skip
