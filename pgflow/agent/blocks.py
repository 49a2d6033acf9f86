"""The saga block of the loop, under the names that its two colours have for it."""

from pgflow.effects import saga as saga_async
from pgflow.sync import saga

__all__ = ["saga", "saga_async"]
