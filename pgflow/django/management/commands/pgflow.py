"""``manage.py pgflow``: pgflow's command line in the project, with its models, on its database.

For instance ``python manage.py pgflow workers``, ``... pgflow list --status stuck``, and
``... pgflow --database reporting doctor``: what follows the command's name is the command's.
``workers`` and ``tick`` serve the workflows that ``PGFLOW`` includes,
unless another module is named.
"""

from __future__ import annotations

import argparse
import importlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.db import connections

from pgflow.django import database_dsn

THE_PROJECT = "pgflow.django:app"


class Command(BaseCommand):
    """Runs a command of pgflow with the project's settings, models and database."""

    help = "Runs a command of pgflow on the project's database; `manage.py pgflow help` lists them."
    requires_system_checks = []  # noqa: RUF012 - as its base declares it

    def add_arguments(self, parser: CommandParser) -> None:
        """Everything after the name of pgflow's command is pgflow's."""
        parser.add_argument(
            "--database",
            choices=list(connections),
            help="Which of DATABASES; else the one that PGFLOW names.",
        )
        parser.add_argument(
            "arguments",
            nargs=argparse.REMAINDER,
            metavar="command ...",
            help="A command of pgflow, and its arguments.",
        )

    def handle(self, *_: Any, database: str | None, arguments: list[str], **__: Any) -> None:
        """Exit with the code of pgflow's command."""
        # Imported by name: the command line is a layer above the integrations.
        command_line = importlib.import_module("pgflow_cli.commands")  # noqa: TID251 - a constant
        with _as_named(database_dsn(database)):
            code = command_line.run(_arguments(arguments, command_line.needs_target))
        if code:
            raise SystemExit(code)


def _arguments(typed: list[str], needs_target: Callable[[list[str]], bool]) -> list[str]:
    """`help` and `help COMMAND` as everywhere in ``manage.py``; the project's app where a command
    works and nothing is named.
    """
    if typed[:1] in ([], ["help"]):
        return [*typed[1:], "--help"]
    return [typed[0], THE_PROJECT, *typed[1:]] if needs_target(typed) else typed


@contextmanager
def _as_named(dsn: str) -> Iterator[None]:
    """Put the database in the environment, where lists of processes do not show its password."""
    before = os.environ.get("PGFLOW_DSN")
    os.environ["PGFLOW_DSN"] = dsn
    try:
        yield
    finally:
        if before is None:
            del os.environ["PGFLOW_DSN"]
        else:
            os.environ["PGFLOW_DSN"] = before
