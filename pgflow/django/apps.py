"""The Django app: ``INSTALLED_APPS = [..., "pgflow.django"]`` brings ``manage.py pgflow`` and the admin's list of runs."""

from __future__ import annotations

from django.apps import AppConfig


class PgflowConfig(AppConfig):
    """Names the app, so that its permission is ``pgflow.view_run``."""

    name = "pgflow.django"
    label = "pgflow"
    verbose_name = "pgflow"
