"""The workflow of an order."""

import pgflow
import pgflow.django
from shop.models import Order


@pgflow.django.transaction
def mark_shipped(order_id: int) -> None:
    """Mark the order as shipped, in one commit with the record of this step."""
    Order.objects.filter(pk=order_id).update(state="shipped")


@pgflow.workflow
def ship(order_id: int) -> None:
    """Ship an order, whatever happens to the worker."""
    mark_shipped(order_id)
