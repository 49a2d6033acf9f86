"""The view ``pgflow.runs`` as a model, for the admin and your own queries.

``Run.objects.filter(key="order-1")`` reads the database that ``PGFLOW["DATABASE"]`` names. Saving
is not possible: it is a view, and Django makes no migration for it. ``manage.py dumpdata`` needs
``--exclude pgflow``.
"""

from __future__ import annotations

from typing import Any

from django.db import models

from pgflow.django import database_alias


class _Json(models.JSONField):
    """A column of type ``json``, which the driver has decoded already;
    Django decodes ``jsonb`` itself.
    """

    def from_db_value(self, value: Any, expression: object, connection: object) -> Any:
        del expression, connection
        return value


class _Runs(models.Manager["Run"]):
    def get_queryset(self) -> models.QuerySet[Run]:
        return super().get_queryset().using(database_alias())


class Run(models.Model):
    """A run as it is now; of a chain of generations the newest."""

    chain_id: models.BigIntegerField[int, int] = models.BigIntegerField(primary_key=True)
    run_id: models.BigIntegerField[int, int] = models.BigIntegerField(unique=True)
    key: models.TextField[str, str] = models.TextField()
    tenant: models.TextField[str, str] = models.TextField()
    workflow: models.TextField[str, str] = models.TextField()
    queue: models.TextField[str, str] = models.TextField()
    status: models.TextField[str, str] = models.TextField()
    reason: models.TextField[str | None, str | None] = models.TextField(null=True)  # noqa: DJ001 - the view says null
    priority: models.SmallIntegerField[int, int] = models.SmallIntegerField()
    attempt: models.IntegerField[int | None, int | None] = models.IntegerField(null=True)
    generation: models.IntegerField[int, int] = models.IntegerField()
    created_at: models.DateTimeField[Any, Any] = models.DateTimeField()
    since: models.DateTimeField[Any, Any] = models.DateTimeField()
    run_at: models.DateTimeField[Any, Any] = models.DateTimeField(null=True)
    deadline_at: models.DateTimeField[Any, Any] = models.DateTimeField(null=True)
    finished_at: models.DateTimeField[Any, Any] = models.DateTimeField(null=True)
    labels: models.JSONField[Any, Any] = models.JSONField(null=True)
    input: models.JSONField[Any, Any] = _Json(null=True)
    output: models.JSONField[Any, Any] = _Json(null=True)
    error: models.JSONField[Any, Any] = _Json(null=True)

    objects = _Runs()

    class Meta:
        """A view, which is read."""

        managed = False
        app_label = "pgflow"
        db_table = '"pgflow"."runs"'
        default_permissions = ("view",)
        ordering = ("-run_id",)
        verbose_name = "run"

    def __str__(self) -> str:
        """Its key."""
        return self.key
