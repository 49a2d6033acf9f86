"""The Django app: ``INSTALLED_APPS = [..., "pgflow.django"]`` brings ``manage.py pgflow`` and the
admin's list of runs.
"""

from __future__ import annotations

import sys
from typing import Any, TextIO

import psycopg
from django.apps import AppConfig
from django.db.models.signals import post_migrate

from pgflow.django import database_alias, database_dsn, migrates
from pgflow.errors import PgflowError
from pgflow.schema import migrate_dsn


class PgflowConfig(AppConfig):
    """Names the app, so that its permission is ``pgflow.view_run``."""

    name = "pgflow.django"
    label = "pgflow"
    verbose_name = "pgflow"

    def ready(self) -> None:
        """Make ``manage.py migrate`` install pgflow's schema, in test databases too."""
        post_migrate.connect(_install, sender=self)


def _install(using: str, verbosity: int = 1, stdout: TextIO = sys.stdout, **_: Any) -> None:
    """Install or upgrade the schema. If that is not possible, print how to do it."""
    if using != database_alias() or not migrates():
        return
    try:
        report = migrate_dsn(database_dsn())
    except (PgflowError, psycopg.Error) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        sys.stderr.write(
            f"  pgflow's schema was not installed: {reason}. Run `manage.py pgflow migrate` as a "
            "role that may.\n"
        )
        return
    if verbosity >= 1 and not report.already_current:
        done = (
            f"Installed pgflow's schema {report.migrations[-1]}"
            if report.migrations
            else "Renewed pgflow's functions and views"
        )
        stdout.write(f"  {done}\n")
    for statement in report.advice:
        sys.stderr.write(f"  A database administrator is to run: {statement}\n")
