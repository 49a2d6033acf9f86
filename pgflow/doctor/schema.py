"""Checks of the schema: whether it is installed and unchanged, and the rights of the role."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pgflow.console.output import many
from pgflow.doctor.finding import Findings, Patient, fail, ok, warn

if TYPE_CHECKING:
    from typing import Any


def check_schema(patient: Patient) -> Findings:
    """Ours, and of this version."""
    from pgflow.errors import SchemaMissing, SchemaOutdated, SetupError
    from pgflow.schema import own_assets, require_schema

    stamp = own_assets().stamp
    try:
        require_schema(patient.connection)
    except (SchemaMissing, SchemaOutdated) as error:
        yield fail(str(error).partition(": run ")[0], "pgflow migrate")
    except SetupError as error:
        found, _, remedy = str(error).rpartition(": ")
        yield fail(found or str(error), remedy)
    else:
        if _is_newer(patient):
            text = f"the schema is newer than this version, which is {stamp}"
            yield warn(text, "upgrade pgflow-engine here")
    return f"the schema is of {stamp}"


def _is_newer(patient: Patient) -> bool:
    from pgflow.schema import Standing, compare_stamp

    return compare_stamp(patient.row(_STAMP)["stamp"]) is Standing.NEWER


_STAMP = "select obj_description(to_regnamespace('pgflow'), 'pg_namespace') as stamp"


_BODY = re.compile(
    r"create (?:or replace )?(?:function|procedure) pgflow\.(\w+)(?:(?!create (?:or replace "
    r")?function).)*?\bas \$\$(.*?)\$\$",
    re.DOTALL,
)
_PARSED_BODY = re.compile(
    r"create (?:or replace )?function pgflow\.(\w+)(?:(?!create (?:or replace )?function|\bas "
    r"\$\$).)*?\n(?:return |begin atomic\n)",
    re.DOTALL,
)
_TABLE = re.compile(r"^create table (?:if not exists )?pgflow\.(\w+)", re.MULTILINE)
_DROPPED_TABLE = re.compile(r"^drop table (?:if exists )?pgflow\.(\w+)", re.MULTILINE)
_INDEX = re.compile(r"^create (?:unique )?index (?:if not exists )?(\w+)", re.MULTILINE)
_DROPPED_INDEX = re.compile(r"^drop index (?:if exists )?pgflow\.(\w+)", re.MULTILINE)
_VIEW = re.compile(r"^create (?:or replace )?view pgflow\.(\w+)", re.MULTILINE)

_FUNCTIONS = """
select p.proname as name, p.prosrc as body, p.oid::regprocedure::text as signature from pg_proc p
where p.pronamespace = to_regnamespace('pgflow') and p.proname !~ '^former_\\d+$' order by 1
"""
_RELATIONS = """
select c.relname as name,
  case when c.relkind in ('r', 'p') then 'table' when c.relkind = 'v' then 'view' else 'index' end
    as kind,
  case when i.indexrelid is not null then not i.indisvalid else false end as is_invalid
from pg_class c left join pg_index i on i.indexrelid = c.oid
where c.relnamespace = to_regnamespace('pgflow') and c.relkind in ('r', 'p', 'v', 'i', 'I')
order by 1
"""


def check_drift(patient: Patient) -> Findings:
    """Yield functions, tables, views and indexes that differ from those of this version.

    The server keeps no text of a function whose body is parsed at its creation: such a function
    must only exist, and be of that kind.
    """
    from pgflow.schema import own_assets

    if _is_newer(patient):
        return "not compared: the schema is newer than this version"
    assets = own_assets()
    sources = "\n".join(file.text for file in assets.sources)
    migrations = "\n".join(file.text for file in assets.migrations)
    relations = patient.rows(_RELATIONS)
    texts = {"table": (_TABLE, _DROPPED_TABLE), "index": (_INDEX, _DROPPED_INDEX)}
    wanted = {
        kind: set(made.findall(migrations)) - set(dropped.findall(migrations))
        for kind, (made, dropped) in texts.items()
    }
    wanted["view"] = set(_VIEW.findall(sources))
    ours = _BODY.findall(sources) + [(name, "") for name in _PARSED_BODY.findall(sources)]
    theirs = patient.rows(_FUNCTIONS)
    yield from _functions(ours, [(row["name"], row["body"]) for row in theirs])
    yield from _overloads(ours, theirs)
    lost = "restore it from a backup, or from `pgflow migrate --sql` of an empty database"
    for kind, names in wanted.items():
        there = {row["name"] for row in relations if row["kind"] == kind}
        for name in sorted(names - there):
            yield fail(f"{kind} pgflow.{name} is missing", lost)
    for name in (row["name"] for row in relations if row["is_invalid"]):
        yield fail(f"index pgflow.{name} is invalid", f"reindex index concurrently pgflow.{name}")
    return "functions, tables, views and indexes are as they were installed"


def _functions(ours: Iterable[tuple[str, str]], theirs: Iterable[tuple[str, str]]) -> Findings:
    """Functions that are missing, changed, or not ours.
    The clock may be another one in a test database.
    """
    wanted, found = _by_name(ours), _by_name(theirs)
    remedy = (
        "pgflow migrate applies a file whose text has changed: "
        "delete its row in pgflow.source first, to have this one applied again"
    )
    for name in sorted(wanted.keys() | found.keys()):
        if name not in found:
            yield fail(f"function pgflow.{name} is missing", remedy)
        elif name not in wanted:
            text = f"function pgflow.{name} is not of this version"
            yield warn(text, "drop it, or give it another schema")
        elif wanted[name] - found[name]:
            yield fail(f"function pgflow.{name} was changed by hand", remedy)


def _overloads(ours: Iterable[tuple[str, str]], theirs: Sequence[dict[str, Any]]) -> Findings:
    """Functions beside one of ours that has the same name: calls may find them instead, or both."""
    wanted, found = _by_name(ours), _by_name((row["name"], row["body"]) for row in theirs)
    for row in theirs:
        name, signature = row["name"], row["signature"]
        bodies = wanted.get(name, set())
        if bodies and bodies <= found[name] and row["body"].strip() not in bodies:
            yield fail(
                f"function {signature} is not pgflow's, and calls of {name} may find it",
                f"drop function {signature}, and see who may create in this schema",
            )


def _by_name(functions: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    bodies: dict[str, set[str]] = {}
    for name, body in functions:
        bodies.setdefault(name, set()).add(body.strip())
    return bodies


_ROLES = {
    "start and signal runs": ("start_run", "send_signal", "cancel_run", "result", "wake"),
    "work on runs": ("claim_runs", "commit_units", "register_worker", "beat", "poll"),
    "pause, resume and retry runs": ("pause_run", "resume_run", "retry_run", "pause_queue"),
    "declare pools and queues": ("declare_app",),
    "answer gates": ("answer_gate", "delegate_gate"),
    "audit": ("check",),
}

_MAY = """
select p.proname as name, bool_and(has_function_privilege(p.oid, 'execute')) as may
from pg_proc p where p.pronamespace = to_regnamespace('pgflow') group by p.proname
"""

_WHO = """
select current_user as name, r.rolsuper as is_superuser,
  has_schema_privilege('pgflow', 'usage') as may_use,
  (select bool_and(has_table_privilege(c.oid, 'select')) from pg_class c
    where c.relnamespace = to_regnamespace('pgflow') and c.relkind = 'v') as may_read,
  (select n.nspowner = r.oid from pg_namespace n where n.nspname = 'pgflow') as owns_it,
  (select bool_or(pg_has_role(o.oid, 'member')) from pg_roles o
    where o.rolname = any(%s) and current_setting('server_version_num')::int >= 160000) as is_member
from pg_roles r where r.rolname = current_user
"""


def check_privileges(patient: Patient) -> Findings:
    """Check the rights of this role."""
    who = patient.row(_WHO, (list(_GRANTEES),))
    name = who["name"]
    if not who["may_use"] or not who["may_read"]:
        # The creator of the roles is a member that inherits nothing, and a plain grant keeps that.
        inherits = " with inherit true" if who["is_member"] else ""
        yield fail(
            f"{name} may not use pgflow here",
            "grant pgflow_client (or _worker, _operator, _auditor, _approver, _declarer) "
            f"to {name}{inherits}",
        )
        return
    may = {row["name"]: row["may"] for row in patient.rows(_MAY)}
    can = [what for what, functions in _ROLES.items() if all(map(may.get, functions))]
    if who["is_superuser"]:
        role = f"{name} is a superuser and may do everything"
        yield ok(f"{role}; workers need no more than pgflow_worker")
    else:
        cannot = [what for what in _ROLES if what not in can]
        text = f"{name} may read{''.join(', ' + what for what in can)}"
        yield ok(text + (f"; not {', '.join(cannot)}" if cannot else ""))
    query = (
        "select n from unnest(%s::text[]) n "
        "where n not in (select rolname from pg_roles) order by n"
    )
    names = [row["n"] for row in patient.rows(query, (list(_GRANTEES),))]
    if names and who["owns_it"]:
        # As docs/how-to/managed-postgres.md has it: one role for everything.
        yield ok(
            f"{name} owns the schema, and no other role can use pgflow: the roles to grant from "
            f"({', '.join(names)}) are not there"
        )
    elif names:
        are = f"{many(len(names), 'role')} to grant from {'is' if len(names) == 1 else 'are'}"
        made = " ".join(f"create role {n} nologin;" for n in names)
        remedy = f"as a database administrator: {made} then pgflow migrate"
        yield warn(f"{are} missing: {', '.join(names)}", remedy)


_GRANTEES = (
    "pgflow_client", "pgflow_worker", "pgflow_operator", "pgflow_auditor", "pgflow_declarer",
    "pgflow_approver", "pgflow_speaker", "pgflow_tenant",
)  # fmt: skip
