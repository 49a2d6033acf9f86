"""The request that places an order."""

import json

from django.db import IntegrityError, connection, transaction
from django.db.models import F
from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt

import pgflow.django
from shop.models import Order, Stock
from shop.workflows import ship


@csrf_exempt
def place_order(request: HttpRequest) -> JsonResponse:
    """Add the order, start its run, take the goods: all of it, or none."""
    wanted = json.loads(request.body)
    try:
        with transaction.atomic():
            order = Order.objects.create(sku_id=wanted["sku"], quantity=wanted["quantity"])
            run = pgflow.django.app.using(connection).start(
                ship.options(key=f"order-{order.pk}"), order.pk
            )
            Stock.objects.filter(pk=order.sku_id).update(n=F("n") - order.quantity)
    except IntegrityError:
        return JsonResponse({"error": "not enough in stock"}, status=409)
    return JsonResponse({"run": run.key}, status=201)
