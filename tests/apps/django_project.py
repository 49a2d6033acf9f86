"""A Django project without a folder: settings made here once a process, pointed at the database of
each test.
"""

from __future__ import annotations

from typing import Any

import django
from django.conf import settings
from django.db import connections, models
from psycopg.conninfo import conninfo_to_dict

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres"}},
    PGFLOW={"INCLUDE": ["django_project"]},
    USE_TZ=True,
)
django.setup()


class Stock(models.Model):
    sku = models.CharField(primary_key=True, max_length=20)
    n = models.IntegerField()

    class Meta:
        app_label = "shop"
        db_table = "stock"
        constraints = [
            models.CheckConstraint(condition=models.Q(n__gte=0), name="never_below_nothing")
        ]


# Decorators of ours read the settings, and workflows name models: both come after the set-up.
from pgflow import Signal, workflow  # noqa: E402
from pgflow.django import transaction  # noqa: E402

go = Signal("go", int)


@workflow
async def wait_for_go(first: int = 0) -> int:
    return first + await go.wait()


@transaction
def take(sku: str, n: int) -> int:
    stock = Stock.objects.select_for_update().get(pk=sku)
    stock.n -= n
    stock.save()
    return stock.n


@workflow
def order(sku: str, n: int) -> int:
    return take(sku, n) + take(sku, n)


def point_at(dsn: str) -> None:
    """Makes the database of a test the project's own, in every thread, with one table in it."""
    given: dict[str, Any] = conninfo_to_dict(dsn)
    connections["default"].close()
    connections.settings["default"].update(
        NAME=given["dbname"],
        USER=given["user"],
        PASSWORD=given.get("password", ""),
        HOST=given["host"],
        PORT=given["port"],
        OPTIONS={},
    )
    with connections["default"].schema_editor() as editor:
        editor.create_model(Stock)
    Stock.objects.bulk_create([Stock(sku="a", n=10), Stock(sku="b", n=10)])
