"""What happens to an order."""

import pgflow
import pgflow.django
from shop.models import Order


@pgflow.django.transaction
def mark_shipped(order_id: int) -> None:
    """What the ORM does here and the record of this step are one commit."""
    Order.objects.filter(pk=order_id).update(state="shipped")


@pgflow.workflow
def ship(order_id: int) -> None:
    """What happens to an order, whatever happens to the worker."""
    mark_shipped(order_id)
