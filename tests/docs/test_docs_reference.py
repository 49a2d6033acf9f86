"""docs/reference/ says what the code and the catalog say; nothing public is missing from it."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import docs_reference
import servers

import pgflow
import pgflow.inspect

if TYPE_CHECKING:
    import psycopg

REFERENCE = servers.REPOSITORY / "docs" / "reference"


def hold(name: str, text: str) -> None:
    """Compares a page with what it should be, or writes it."""
    page = REFERENCE / name
    if os.environ.get("PGFLOW_UPDATE_SNAPSHOT"):
        page.parent.mkdir(exist_ok=True)
        page.write_text(text)
    assert page.read_text() == text, (
        f"docs/reference/{name} is out of date: PGFLOW_UPDATE_SNAPSHOT=1 pytest "
        "tests/docs/test_docs_reference.py"
    )


def test_the_page_on_python_is_that_of_the_docstrings():
    hold("python.md", docs_reference.python_page())


def test_the_page_on_readers_is_that_of_the_docstrings():
    hold("inspect.md", docs_reference.readers_page())


def test_the_page_on_errors_is_that_of_their_tree():
    hold("errors.md", docs_reference.errors_page())


def test_the_page_on_the_rules_of_the_lint_is_that_of_the_rules():
    hold("checks.md", docs_reference.rules_page())


def test_the_page_on_sql_is_that_of_the_catalog(db: psycopg.Connection):
    hold("sql.md", docs_reference.sql_page(db))


VALUES = {
    "Answer", "Verdict",
}  # fmt: skip
"""Names of unions, and of what only the surface that is not built yet gives or takes."""

TYPES = {
    "AsyncStep",
    "AsyncTransaction",
    "Connection",
    "Risk",
    "Status",
    "Step",
    "SyncEffect",
    "SyncSignal",
    "SyncStep",
    "Transaction",
    "Workflow",
    "logger",
    "sync",
    "__version__",
}
"""Names of modules, and those that annotations use."""


def test_nothing_public_is_missing():
    documented = set(
        re.findall(r"^### `([\w.]+)`", (REFERENCE / "python.md").read_text(), re.MULTILINE)
    )
    documented |= set(re.findall(r"`(\w+)`", (REFERENCE / "errors.md").read_text()))
    assert set(pgflow.__all__) - documented == VALUES | TYPES


TYPES_OF_READERS = {"EVERY_RUN", "STATUSES", "After", "AsyncSource", "Call", "ChargesBy", "Source"}
"""Names of constants, and those that annotations use."""


def test_no_reader_is_missing():
    documented = set(
        re.findall(r"^### `([\w.]+)`", (REFERENCE / "inspect.md").read_text(), re.MULTILINE)
    )
    assert set(pgflow.inspect.__all__) - documented == TYPES_OF_READERS
    assert documented <= set(pgflow.inspect.__all__)
