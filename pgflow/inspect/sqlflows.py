"""Workflows in SQL: their versions and texts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import LiteralString

from pgflow._db.query import Query
from pgflow.inspect.question import Question, all_rows, once, only_row, select


@dataclass(frozen=True)
class SqlFlowRow:
    """A version of a workflow in SQL. A row of the view ``pgflow.workflows``.

    Attributes:
        workflow: Name of the workflow.
        version: Number of the version.
        is_current: True if runs begin with it.
        open_runs: Number of open runs that have begun with it.
        definer: Role with whose rights its steps run.
        signature: Name and parameters, as they were written.
        body: The text; None if you do not have the rights of its definer.
        created_at: Time at which it was made.
    """

    workflow: str
    version: int
    is_current: bool
    open_runs: int
    definer: str
    signature: str
    body: str | None
    created_at: datetime


@dataclass(frozen=True)
class SqlFlowError:
    """An error that the extension plpgsql_check finds in a workflow in SQL.

    Attributes:
        line: Line of the text.
        sqlstate: Its SQLSTATE.
        message: Text of the error.
        hint: A way out; None if the server knows none.
    """

    line: int
    sqlstate: str
    message: str
    hint: str | None


_FLOWS: LiteralString = select(
    SqlFlowRow,
    (
        "from pgflow.workflows where %s::text is null and is_current or workflow = %s "
        "order by workflow, version"
    ),
)


def list_sql_flows(workflow: str | None = None) -> Question[list[SqlFlowRow]]:
    """Ask for the workflows in SQL, or for all versions of one.

    Args:
        workflow: Name of one; None for the current versions of all.
    """
    query = Query(_FLOWS, (workflow, workflow), lambda rows: [SqlFlowRow(*row) for row in rows])
    return once(query)


def draw_sql_flow(workflow: str, version: int | None = None) -> Question[str]:
    """Ask for a picture of a workflow in SQL, as text for Mermaid.

    Args:
        workflow: Its name.
        version: Number of a version; None for the current one.
    """
    sql = "select pgflow.draw_workflow(%s::text, %s::int)"
    return only_row(str, sql, workflow, version)


def check_sql_flow(workflow: str, version: int | None = None) -> Question[list[SqlFlowError]]:
    """Ask for the errors that plpgsql_check finds in the steps of a workflow in SQL.

    Args:
        workflow: Its name.
        version: Number of a version; None for the current one.
    """
    sql = "select line, sqlstate, message, hint from pgflow.check_workflow(%s::text, %s::int)"
    return all_rows(SqlFlowError, sql, workflow, version)
