"""Queues: their rules, and counts of what waits in them."""

from pgflow._model.batches import BatchCount
from pgflow._model.queues import Backlog, Queue, QueueRules

__all__ = ["Backlog", "BatchCount", "Queue", "QueueRules"]
