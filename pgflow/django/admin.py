"""The admin's list of runs, to look at: who wants a run changed says so to pgflow, which wakes it.

The admin asks by the ORM, so it reads the view ``pgflow.runs`` by its model; a test holds the
model's columns to those of :class:`pgflow.inspect.RunDetail`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.functional import cached_property

from pgflow.django import project_app
from pgflow.django.models import Run
from pgflow.inspect import STATUSES

MOST_COUNTED = 10_000
"""A history may be long: the list counts no further; filters find older runs."""


if TYPE_CHECKING:
    _RunAdmin = admin.ModelAdmin[Run]
    _RunPaginator = Paginator[Run]
else:
    _RunAdmin = admin.ModelAdmin
    _RunPaginator = Paginator


class _Paginator(_RunPaginator):
    @cached_property
    def count(self) -> int:
        runs: Any = self.object_list
        return int(runs.order_by()[:MOST_COUNTED].count())


class _Filter(admin.SimpleListFilter):
    """A filter by one column, whose values are known without reading the history."""

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        del request
        return (
            queryset
            if self.value() is None
            else queryset.filter(**{self.parameter_name or "": self.value()})
        )


class _StatusFilter(_Filter):
    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        del request, model_admin
        return [(status, status) for status in STATUSES]


class _WorkflowFilter(_Filter):
    title = "workflow"
    parameter_name = "workflow"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        del request, model_admin
        return [(name, name) for name in sorted(project_app().definitions.workflows)]


@admin.register(Run)
class RunAdmin(_RunAdmin):
    """Read-only list of runs. Needs the permission ``pgflow.view_run``."""

    list_display = ("key", "status", "reason", "workflow", "queue", "since", "created_at")
    list_filter = (_StatusFilter, _WorkflowFilter)
    search_fields = ("key__exact",)
    search_help_text = "The key of a run"
    show_full_result_count = False
    paginator = _Paginator

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Return False: code starts runs."""
        del request
        return False

    def has_change_permission(self, request: HttpRequest, obj: Run | None = None) -> bool:
        """Return False."""
        del request, obj
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Run | None = None) -> bool:
        """Return False."""
        del request, obj
        return False
