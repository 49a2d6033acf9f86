"""Declared triggers: a change of a row of an application's table starts a run, in the transaction
of the change.

A declaration is code; Postgres fires a trigger, whose DDL is generated here and installed like any
migration. So every writer to the table starts the run, in any language, with COPY and with updates
of many rows too, and exactly once for each row and change: the run exists if the change commits.
The condition is a part of the trigger. It is parsed and written anew, and refused unless it is
plain: comparisons of columns and constants. Further checks belong in the workflow, which can read
again.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pgflow._flow.step import resolve_hints
from pgflow._flow.workflow import Workflow
from pgflow._model.names import is_name
from pgflow.errors import DefinitionError

Operation = Literal["insert", "update", "delete"]

W = TypeVar("W", bound=Workflow[..., Any])

SCHEMA = "pgflow_triggers"
PREFIX = "on_"
MAX_IDENTIFIER_BYTES = 63
OPERATIONS: tuple[Operation, ...] = ("insert", "update", "delete")


@dataclass(frozen=True)
class Change:
    """A change of a row, as it was when it happened; others may have followed.

    Attributes:
        table: Table, with its schema.
        operation: ``insert``, ``update`` or ``delete``.
        new: The row after it, by columns; None after a delete.
        old: The row before it; None before an insert.
    """

    table: str
    operation: str
    new: dict[str, Any] | None
    old: dict[str, Any] | None


class Trigger:
    """A trigger that starts a workflow.

    Args:
        workflow: The workflow, with one parameter.
        table: Table, perhaps with its schema.
        when: Condition on ``new`` and ``old``, as SQL.
        old_differs: Columns of which one must have changed, for updates.
        operations: Operations that it is for.
        always: True if it fires for changes that logical replication applies, too.
        name: A name of its own; made of table and workflow if not given.

    Raises:
        DefinitionError: No trigger can have these options.
    """

    def __init__(
        self,
        workflow: Workflow[..., Any],
        table: str,
        when: str | None,
        old_differs: Sequence[str],
        operations: Sequence[Operation] | None,
        name: str | None,
        *,
        always: bool,
    ) -> None:
        self.workflow = workflow
        self.always = always
        where = f"the trigger of workflow {workflow.name}"
        workflow.start_options.refuse_place(where)
        self.table = _parse_table(table, where)
        if isinstance(old_differs, str):
            raise DefinitionError(f"{where}: old_differs is a list of columns, not a text")
        self.old_differs = [_column(column, where) for column in old_differs]
        sides: set[str] = set()
        self.when: str | None = None
        if when is not None:
            self.when, sides = _parse_condition(when, where)
        wanted: Sequence[str] = operations or ()
        if operations is None:
            wanted = ("update",) if "old" in sides else ("insert", "update")
        self.operations = tuple(op for op in OPERATIONS if op in wanted)
        if not self.operations or set(wanted) - set(OPERATIONS):
            raise DefinitionError(
                f"{where}: operations are insert, update and delete, not {operations!r}"
            )
        for side, lacking in (("old", "insert"), ("new", "delete")):
            if side in sides and lacking in self.operations:
                raise DefinitionError(
                    f"{where}: its condition names {side}, which there is not for operation "
                    f"{lacking}: say operations= without it"
                )
        if self.old_differs and "update" not in self.operations:
            raise DefinitionError(f"{where}: old_differs requires updates")
        parameters = list(inspect.signature(workflow.fn).parameters)
        if len(parameters) != 1:
            raise DefinitionError(
                f"{where}: the workflow must have one parameter, the row or a pgflow.events.Change"
            )
        self.parameter = parameters[0]
        if name is not None and not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
            raise DefinitionError(f"{where}: a name has a-z, 0-9 and _, not {name!r}")
        self.name = _identifier(name or f"{'_'.join(self.table)}_{workflow.name}")

    @property
    def takes_change(self) -> bool:
        """True if the workflow gets all of the change, and not the row alone."""
        return resolve_hints(self.workflow.fn).get(self.parameter) is Change

    @property
    def definition_hash(self) -> str:
        """Hash of its DDL: another one is another trigger."""
        return hashlib.sha256("\n".join(self._statements()).encode()).hexdigest()[:16]

    @property
    def quoted_table(self) -> str:
        """Its table, as SQL names it."""
        return ".".join(_quote(part) for part in self.table)

    def ddl(self) -> str:
        """Return the statements that install it, in one transaction; they may be run again."""
        statements = [
            "begin",
            f"create schema if not exists {SCHEMA}",
            *self._statements(),
            self._mark(),
            "commit",
        ]
        return ";\n".join(statements) + ";\n"

    def _mark(self) -> str:
        """A statement that marks it with its definition, and with a hash of what is installed."""
        function = f"comment on function {SCHEMA}.{_quote(self.name)}() is %L"
        mark = f"pgflow trigger {self.definition_hash} %s on %s"
        table = f"{_literal(self.quoted_table)}::regclass::oid"
        body = (
            f"begin\n  execute format({_literal(function)},"  # noqa: S608 - each part is quoted
            f" format({_literal(mark)}, 'none', {table}));\n"
            f"  execute format({_literal(function)}, (select format({_literal(mark)}, t.hash,"
            f" {table})\n    from pgflow.triggers t where t.name = {_literal(self.name)}));\nend"
        )
        tag = _tag(body)
        return f"do {tag}\n{body}\n{tag}"

    def _statements(self) -> list[str]:
        options = self.workflow.start_options
        function = f"{SCHEMA}.{_quote(self.name)}"
        value = "to_json(new)" if self.operations != ("delete",) else "to_json(old)"
        if "delete" in self.operations and len(self.operations) > 1:
            value = "case tg_op when 'DELETE' then to_json(old) else to_json(new) end"
        if self.takes_change:
            new = "case tg_op when 'DELETE' then null else to_json(new) end"
            old = "case tg_op when 'INSERT' then null else to_json(old) end"
            value = (
                "json_build_object('table', tg_table_schema || '.' || tg_table_name,"
                f" 'operation', lower(tg_op),\n      'new', {new},\n      'old', {old})"
            )
        arguments = [
            f"workflow => {_literal(self.workflow.name)}",
            f"input => json_build_object({_literal(self.parameter)}, {value})",
            f"queue => {_literal(options.queue)}",
            f"priority => {options.priority}",
            "defaults => '{}'",  # so that no row of the application is refused for its code's age
        ]
        if options.timeout is not None:
            arguments.append(f"timeout_seconds => {options.timeout.total_seconds()}")
        if options.version:
            arguments.append(f"version => {_literal(options.version)}")
        if options.labels:
            arguments.append(f"labels => {_literal(json.dumps(options.labels))}::jsonb")
        body = ",\n    ".join(arguments)
        tag = _tag(body)
        starting = (
            f"create or replace function {function}() returns trigger language plpgsql\n"
            f"security definer set search_path = pg_catalog, pg_temp as {tag}\nbegin\n"
            f"  perform pgflow.start_run({body});\n  return null;\nend\n{tag}"
        )
        made = [
            starting,
            f"revoke all on function {function}() from public",
        ]
        for operation in OPERATIONS:
            trigger = self.trigger_name(operation)
            if operation not in self.operations:
                made.append(f"drop trigger if exists {trigger} on {self.quoted_table}")
                continue
            conditions = [] if self.when is None else [self.when]
            if operation == "update" and self.old_differs:
                differs = [f"new.{c} is distinct from old.{c}" for c in self.old_differs]
                conditions.append(" or ".join(differs))
            when = " and ".join(f"({condition})" for condition in conditions)
            made.append(
                f"create or replace trigger {trigger} after {operation} on {self.quoted_table}\n"
                "for each row "
                + (f"when ({when}) " if when else "")
                + f"execute function {function}()"
            )
            made.append(
                f"alter table {self.quoted_table} enable {'always ' if self.always else ''}trigger "
                f"{trigger}"
            )
        return made

    def trigger_name(self, operation: Operation) -> str:
        """Return the name of the trigger in the catalog, quoted.

        Args:
            operation: The operation that it is for.
        """
        return _quote(f"{self.name}_{operation[:3]}")

    def removal(self) -> str:
        """Return the statements that remove it."""
        return removal(self.name, self.quoted_table)


def removal(name: str, table: str) -> str:
    """Return the statements that remove a trigger.

    Args:
        name: Its name.
        table: Its table, as SQL names it.
    """
    drops = [
        f"drop trigger if exists {_quote(f'{name}_{operation[:3]}')} on {table}"
        for operation in OPERATIONS
    ]
    statements = ["begin", *drops, f"drop function if exists {SCHEMA}.{_quote(name)}()", "commit"]
    return ";\n".join(statements) + ";\n"


def on(
    table: str,
    *,
    when: str | None = None,
    old_differs: Sequence[str] = (),
    operations: Sequence[Operation] | None = None,
    always: bool = False,
    name: str | None = None,
) -> Callable[[W], W]:
    """Start a workflow at each change of a row, in the transaction of the change. Put it above
    ``@workflow``.

    The trigger that does so is installed by the statements that ``pgflow triggers --sql`` prints.
    The workflow has one parameter: the row after the change (before a delete), or a
    :class:`pgflow.events.Change`.

    Args:
        table: Table, perhaps with its schema.
        when: Condition on ``new`` and ``old``, as SQL: comparisons of columns and constants.
        old_differs: Columns of which one must have changed by an update.
        operations: Of ``insert``, ``update`` and ``delete``; inserts and updates if not given, or
            updates alone if the condition names ``old``.
        always: True if it fires for changes that logical replication applies, too.
        name: A name for the trigger; made of table and workflow if not given.

    Raises:
        DefinitionError: The condition is not plain, or no trigger can have these options.

    Example::

        @pgflow.events.on("orders", when="new.status = 'paid'", old_differs=["status"])
        @pgflow.workflow
        async def fulfil(order: Order) -> None: ...
    """

    def declare(workflow: W) -> W:
        if not isinstance(workflow, Workflow):
            raise DefinitionError("@pgflow.events.on must be above @pgflow.workflow")
        made = Trigger(workflow, table, when, old_differs, operations, name, always=always)
        if any(other.name == made.name for other in workflow.origin.triggers):
            raise DefinitionError(
                f"workflow {workflow.name} has two triggers named {made.name}: give one a name="
            )
        workflow.origin.triggers.append(made)
        return workflow

    return declare


# ---------------------------------------------------------------- SQL


def _tag(body: str) -> str:
    """A quote of dollars that is not in a text."""
    tag = "$pgflow$"
    while tag in body:
        tag = f"$p{hashlib.sha256(tag.encode()).hexdigest()[:12]}$"
    return tag


def _quote(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def _literal(text: str) -> str:
    escaped = text.replace("'", "''")
    return f"E'{escaped}'".replace("\\", "\\\\") if "\\" in text else f"'{escaped}'"


def _identifier(text: str) -> str:
    """A name that leaves room for the operation, and differs where what it is made of does."""
    plain = re.sub(r"[^a-z0-9_]+", "_", text.lower())
    most = MAX_IDENTIFIER_BYTES - len("_ins")
    made = PREFIX + plain
    if plain == text and len(made) <= most:
        return made
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{made[: most - 9]}_{digest}"


def _column(name: str, where: str) -> str:
    if not is_name(name) or len(name.encode()) > MAX_IDENTIFIER_BYTES:
        raise DefinitionError(f"{where}: {name!r} is not a column")
    return _quote(name)


def _parse_table(table: str, where: str) -> tuple[str, ...]:
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    try:
        found = sqlglot.parse_one(table, dialect="postgres", into=exp.Table)
    except SqlglotError as error:
        raise DefinitionError(f"{where}: {table!r} is not a table") from error
    parts = found.parts
    if (
        not isinstance(found, exp.Table)
        or not 1 <= len(parts) <= 2
        or not all(isinstance(part, exp.Identifier) for part in parts)
        or any(value for key, value in found.args.items() if key not in ("this", "db"))
    ):
        raise DefinitionError(f"{where}: {table!r} is not a table: say name or schema.name")
    return tuple(_folded(part) for part in parts)


def _folded(identifier: Any) -> str:
    """A name as Postgres reads it: in lower case, unless it is quoted."""
    name = str(identifier.this)
    return name if identifier.args.get("quoted") else name.lower()


def _parse_condition(text: str, where: str) -> tuple[str, set[str]]:
    """Return a condition written anew, and which of ``new`` and ``old`` it names.

    Raises:
        DefinitionError: It is not plain.
    """
    import sqlglot
    from sqlglot import exp
    from sqlglot.errors import SqlglotError

    plain = (
        exp.And,
        exp.Or,
        exp.Not,
        exp.Paren,
        exp.EQ,
        exp.NEQ,
        exp.LT,
        exp.LTE,
        exp.GT,
        exp.GTE,
        exp.Is,
        exp.NullSafeEQ,
        exp.NullSafeNEQ,
        exp.In,
        exp.Between,
        exp.Literal,
        exp.Boolean,
        exp.Null,
        exp.Neg,
        exp.Column,
        exp.Identifier,
    )
    try:
        (found, *others) = sqlglot.parse(f"select 1 where {text}", dialect="postgres")
    except SqlglotError as error:
        raise DefinitionError(f"{where}: when={text!r} cannot be parsed: {error}") from error
    if (
        others
        or not isinstance(found, exp.Select)
        or set(_given(found)) != {"expressions", "where"}
    ):
        raise DefinitionError(f"{where}: when={text!r} is more than a condition")
    condition = found.args["where"].this
    sides: set[str] = set()
    for node in condition.walk():
        if not isinstance(node, plain):
            raise DefinitionError(
                f"{where}: when={text!r} is not plain: it has {node.sql(dialect='postgres')!r}. "
                "Compare columns of new and old with constants, and check the rest in the workflow"
            )
        if isinstance(node, exp.In) and set(_given(node)) != {"this", "expressions"}:
            raise DefinitionError(f"{where}: when={text!r} is not plain: IN takes constants")
        if isinstance(node, exp.Column):
            sides.add(_side_of(node, text, where))
        elif isinstance(node, exp.Identifier):
            node.set("this", _folded(node))
            node.set("quoted", True)
    return condition.sql(dialect="postgres"), sides


def _side_of(column: Any, text: str, where: str) -> str:
    """Return which of ``new`` and ``old`` a column of a condition is of.

    Raises:
        DefinitionError: It is of neither.
    """
    side = _folded(column.args["table"]) if column.args.get("table") else None
    if side not in ("new", "old") or column.args.get("db"):
        raise DefinitionError(
            f"{where}: column {column.sql(dialect='postgres')} of when={text!r} must be one of "
            "new or old: new.status, say"
        )
    return side


def _given(node: Any) -> list[str]:
    return [key for key, value in node.args.items() if value]
