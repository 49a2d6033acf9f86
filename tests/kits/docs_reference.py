"""Makes the pages of docs/reference/ from what they are about: docstrings, the catalog's comments,
the tree of errors.

``PGFLOW_UPDATE_SNAPSHOT=1 pytest tests/docs/test_docs_reference.py`` writes them anew.
"""

from __future__ import annotations

import inspect
import re
import textwrap
import typing
from typing import Any, LiteralString

import psycopg
from colours import of_the_other_colour

import pgflow
from pgflow import (
    agent,
    documents,
    errors,
    links,
    lint,
    sinks,
    streams,
    testing,
    web,
    webhooks,
    workspace,
)
from pgflow import inspect as readers
from pgflow._transactions import provider
from pgflow._worker import options

MADE = "<!-- Made by tests/kits/docs_reference.py; do not edit. -->\n"

# ---------------------------------------------------------------- Python

PARTS: list[tuple[str, str, list[Any]]] = [
    ("Declare", "Workflows and steps.", [pgflow.workflow, pgflow.read, pgflow.step, pgflow.transaction, pgflow.Retries, pgflow.Signal, pgflow.upcaster]),
    ("Apps and clients", ("`App` for sync code, `AsyncApp` for async code; their methods are the "
                         "same, awaited or not."), [pgflow.App, pgflow.PayloadCodec, pgflow.Client, pgflow.Run, pgflow.Delivery, pgflow.Message, pgflow.AsyncApp, pgflow.AsyncClient, pgflow.AsyncRun]),
    ("Options of a start", "", [pgflow.Workflow.options, pgflow.StartOptions]),
    ("Workers", "What `app.worker(...)` takes beyond `concurrency` and `queues`.", [options.WorkerOptions, options.Tally]),
    ("In workflow code: what waits", ("Coroutines, for async workflows. The twins for sync ones are "
                                     "in `pgflow.sync`."), [pgflow.sleep, pgflow.call, pgflow.run_child, pgflow.start_child, pgflow.Child, pgflow.SyncChild, pgflow.map, pgflow.MapResult, pgflow.as_completed, pgflow.continue_as_new]),
    ("In workflow code: what does not", "Plain calls in both colours.", [pgflow.now, pgflow.random, pgflow.uuid, pgflow.patched, pgflow.deprecate_patch, pgflow.set_state, pgflow.set_labels, pgflow.emit, pgflow.close_stream, pgflow.run_info, pgflow.RunInfo, pgflow.in_workflow, pgflow.inline]),
    ("In a step", "`idempotency_key` and `run_info` work in workflow code too.", [pgflow.idempotency_key, pgflow.heartbeat, pgflow.heartbeat_details]),
    ("Effects and decisions", "See [Charge, book, send](../how-to/effects.md).", [pgflow.effect, pgflow.AsyncEffect, pgflow.Accepted, pgflow.Confirmed, pgflow.Absent, pgflow.StillUnknown, pgflow.fingerprint, pgflow.Ref, pgflow.Page, pgflow.saga, pgflow.UndoRequest, pgflow.PlannedCall, pgflow.PlannedSql, pgflow.decision, pgflow.Choice, pgflow.Decision, pgflow.Usage, pgflow.because]),
    ("Obligations", "See [Owe, discharge, transfer, waive](../how-to/obligations.md).", [pgflow.owe, pgflow.Obligation, pgflow.discharge, pgflow.transfer, pgflow.waive]),
    ("Queues", "See [Limit and order a queue](../how-to/queues.md).", [pgflow.QueueRules, pgflow.Backlog, pgflow.BatchCount]),
    ("Budgets", "See [Budgets](../how-to/budgets.md).", [pgflow.Pool, pgflow.Admit, pgflow.charge]),
    ("Gates", "See [Ask a person](../how-to/gates.md).", [pgflow.gate, pgflow.Approved, pgflow.Rejected, pgflow.Escalated, pgflow.Expired, pgflow.TakenOver, pgflow.Approve, pgflow.Reject, pgflow.Escalate, pgflow.TakeOver, pgflow.GateRequest, pgflow.OpenGate]),
    ("Links", "See [Send links](../how-to/gates.md#send-links). They are in `pgflow.links`.", [links.LinkKeys, links.Link, links.asgi]),
    ("The console", "See [See and mend in a browser](../how-to/console.md). It is in `pgflow.web`.", [web.asgi, web.Principal, web.Local, web.Tokens, web.Oidc]),
    ("Agents", "See [Run an agent](../how-to/agents.md). They are in `pgflow.agent`; the twin of `loop` is in `pgflow.agent.sync`.", [agent.loop, agent.Outcome, agent.read_log, agent.LogUnit]),
    ("Streams", "See [Show it live](../how-to/agents.md#show-it-live). They are in `pgflow.streams`.", [streams.Tails, streams.Event, streams.asgi, streams.message]),
    ("Workspaces", "See [Work in a repository](../how-to/workspaces.md). They are in `pgflow.workspace`; the twin of `lease` is in `pgflow.workspace.sync`.", [workspace.Workspace, workspace.Change, workspace.Snapshot, workspace.change, workspace.lease, workspace.classify, workspace.Command, workspace.push.fn, workspace.Pushed]),
    ("Around runs", "", [pgflow.Interceptor, pgflow.replaying, pgflow.operation, pgflow.Operation, pgflow.register_errors, provider.TransactionProvider, provider.AsyncTransactionProvider]),
    ("Locks and entities", "See [Let one run at a time](../how-to/locks.md) and [Share state among runs](../how-to/entities.md).", [
        pgflow.lock, pgflow.entity, pgflow.update, pgflow.Update, pgflow.query, pgflow.Snapshot,
    ]),
    ("Documents", "They are in `pgflow.documents`; the twin of `AsyncDocuments` is `Documents`.", [documents.AsyncDocuments, documents.Put, documents.Document]),
    ("Updates", "See [Ask a running workflow](../how-to/updates.md).", [
        pgflow.Workflow.update, pgflow.serve, pgflow.UpdateHandler, pgflow.BoundUpdate, pgflow.SentUpdate, pgflow.AsyncSentUpdate,
    ]),
    ("Schedules", "See [Start runs by themselves](../how-to/schedules.md).", [pgflow.schedule, pgflow.Slot]),
    ("Events", "See [Publish events](../how-to/outbox.md).", [pgflow.publish, pgflow.wait_for_event, pgflow.Event, pgflow.Relay, pgflow.Sink, pgflow.TryLater, pgflow.Undeliverable]),
    ("Triggers", "See [React to changes](../how-to/triggers.md).", [pgflow.on, pgflow.Change]),
    ("Sinks", "They are in `pgflow.sinks`.", [sinks.Http, sinks.HttpRefused, sinks.Notify, sinks.RedisStream]),
    ("Webhooks", "See [Take webhooks](../how-to/webhooks.md). They are in `pgflow.webhooks`.", [
        webhooks.Endpoint, webhooks.Request, webhooks.Start, webhooks.Send, webhooks.StandardWebhooks, webhooks.Stripe, webhooks.GitHub, webhooks.asgi, webhooks.wsgi,
    ]),
    ("Testing", "See [Test workflows](../how-to/testing.md).", [testing.AsyncHarness, testing.Harness, testing.ReplayHistories]),
]  # fmt: skip


def python_page() -> str:
    """The public surface, from its docstrings."""
    parts = [
        MADE,
        "# Python\n",
        f"{_first_words(pgflow)}\n",
        "[Errors](errors.md) and [readers of the database](inspect.md) have pages of their own.\n",
    ]
    for title, words, things in PARTS:
        parts.append(f"## {title}\n")
        if words:
            parts.append(f"{words}\n")
        parts.extend(_entry(thing) for thing in things)
    return "\n".join(parts)


PARTS_OF_READERS: list[tuple[str, str, list[Any]]] = [
    ("Asking", "", [readers.ask, readers.ask_async, readers.stream, readers.stream_async, readers.Question, readers.Listing]),
    ("Runs", "", [
        readers.RunFilter, readers.list_runs, readers.search_runs, readers.count_runs, readers.count_ended, readers.find_run, readers.find_detail, readers.find_newest,
        readers.find_key, readers.find_keys, readers.list_children, readers.list_child_chains, readers.list_chains, readers.sample_chains,
        readers.list_outcomes, readers.has_queued, readers.read_statuses, readers.read_state, readers.read_output,
        readers.RunRow, readers.RunDetail, readers.ChildRow,
    ]),
    ("Steps and calls", "", [readers.list_steps, readers.read_calls, readers.StepRow, readers.Calls, readers.CallRow, readers.CallGroup]),
    ("Timeline", "", [readers.read_history, readers.list_units, readers.last_seq, readers.read_event_kinds, readers.read_progress, readers.fold, readers.History, readers.Entry, readers.Failure, readers.UnitRow, readers.Progress]),
    ("Ledgers", "See [Charge, book, send](../how-to/effects.md).", [
        readers.read_audit, readers.list_decisions, readers.list_decided, readers.list_effects, readers.list_obligations, readers.find_obligation, readers.list_debts, readers.count_left,
        readers.Audit, readers.LedgerEvent, readers.DecisionRow, readers.DecidedRow, readers.EffectRow, readers.ObligationRow,
    ]),
    ("Policy", "See [Ask by policy](../how-to/gates.md#ask-by-policy).", [readers.judge_act, readers.JudgedRule]),
    ("Budgets", "See [Budgets](../how-to/budgets.md).", [
        readers.list_budgets, readers.list_charges, readers.sum_charges, readers.sum_charges_by, readers.sum_taken, readers.BudgetRow, readers.ChargeRow, readers.SpentRow,
    ]),
    ("Seals", "See [Prove that nothing was changed](../how-to/audit.md).", [
        readers.verify_seals, readers.read_anchor, readers.read_proof, readers.check_proof, readers.check_anchor, readers.list_seals, readers.read_seal_lag,
        readers.Verification, readers.SealFinding, readers.SealRow, readers.SealLag,
    ]),
    ("Queues and workers", "", [
        readers.list_queues, readers.list_queue_changes, readers.list_queue_names, readers.unknown_queues, readers.list_lanes, readers.is_served, readers.why_unserved,
        readers.find_queue, readers.list_workflows, readers.list_workers, readers.count_workers, readers.list_holders,
        readers.list_batches, readers.QueueRow, readers.QueueChangeRow, readers.BatchRow, readers.LaneRow, readers.WorkerRow, readers.WorkerCount, readers.Holder,
        readers.list_held_runs, readers.HeldRun,
    ]),
    ("Rates", "", [readers.read_rates, readers.read_pulse, readers.list_workflow_rows, readers.list_step_times, readers.Rates, readers.Minute, readers.WorkflowRow, readers.StepTimes]),
    ("Gates", "See [Ask a person](../how-to/gates.md).", [readers.list_gates, readers.list_gates_below, readers.list_gate_names, readers.find_gate, readers.read_shape, readers.GateRow]),
    ("Schedules", "See [Start runs by themselves](../how-to/schedules.md).", [
        readers.list_schedules, readers.find_schedule, readers.list_schedule_changes, readers.count_schedules, readers.ScheduleRow, readers.ScheduleCount, readers.ScheduleChangeRow,
    ]),
    ("Locks and entities", "", [
        readers.list_locks, readers.list_entity_names, readers.list_entities, readers.find_entity, readers.list_entity_updates,
        readers.LockRow, readers.EntityRow, readers.EntityUpdateRow,
    ]),
    ("Documents", "", [readers.list_documents, readers.DocumentRow]),
    ("Events", "See [Publish events](../how-to/outbox.md).", [
        readers.list_relays, readers.list_relay_changes, readers.list_events, readers.list_deliveries, readers.list_triggers,
        readers.RelayRow, readers.RelayChangeRow, readers.EventRow, readers.DeliveryRow, readers.TriggerRow,
    ]),
    ("Messages and orders", "", [readers.list_messages, readers.list_orders, readers.MessageRow, readers.OrderRow]),
    ("Versions and patches", "See [Change running code](../how-to/change-running-code.md).", [readers.list_versions, readers.list_patches, readers.VersionRow, readers.PatchRow]),
    ("Health", "`pgflow doctor` asks these.", [
        readers.read_idleness, readers.check_workers, readers.list_stray_leases, readers.list_waiting_queues, readers.list_unserved_lanes,
        readers.count_stuck, readers.count_left_messages, readers.list_losses, readers.list_large_partitions, readers.check_books, readers.read_view_costs,
        readers.Idleness, readers.WorkerHealth, readers.StrayLeases, readers.WaitingQueue, readers.UnservedLane, readers.StuckRuns, readers.LeftMessages,
        readers.LossRow, readers.LargePartition, readers.Violation,
    ]),
    ("Traces", "", [readers.read_trace, readers.derive_ids]),
    ("The server", "The console's page of health asks these.", [
        readers.read_server, readers.list_tables, readers.list_snapshots, readers.list_slow_statements,
        readers.ServerState, readers.TableRow, readers.SnapshotRow, readers.StatementRow,
    ]),
    ("Clock and words", "", [readers.database_now, readers.has_passed, readers.describe_error, readers.readable, readers.encoded]),
]  # fmt: skip


def readers_page() -> str:
    """The readers of the database, from their docstrings."""
    parts = [
        MADE,
        "# Readers of the database\n",
        f"{_first_words(readers)}\n",
        "[Read runs from Python](../how-to/read-runs.md) shows them at work.\n",
    ]
    for title, words, things in PARTS_OF_READERS:
        parts.append(f"## {title}\n")
        if words:
            parts.append(f"{words}\n")
        parts.extend(
            _row(thing)
            if inspect.isclass(thing) and thing is not readers.RunFilter
            else _entry(thing)
            for thing in things
        )
    return "\n".join(parts)


def _row(thing: type) -> str:
    """A class that is only ever read: nobody calls it."""
    methods = [line for member in _methods(thing) if (line := _method(*member, None))]
    said = [f"### `{thing.__qualname__}`\n", f"{_prose(inspect.getdoc(thing) or '')}\n"]
    return "\n".join([*said, "\n".join(methods) + "\n"] if methods else said)


def _first_words(thing: Any) -> str:
    return _prose(inspect.getdoc(thing) or "")


def _entry(thing: Any) -> str:
    name = thing.__qualname__
    doc = inspect.getdoc(thing) or ""
    if not inspect.isclass(thing):
        return f"### `{name}`\n\n`{_signature(thing)}`\n\n{_prose(doc)}\n"
    said = [f"### `{name}`\n"]
    made = (
        (thing.__init__.__doc__ and inspect.getdoc(thing.__init__)) or ""
        if getattr(thing.__init__, "__module__", "").startswith("pgflow")
        else ""
    )
    if hasattr(thing, "__dataclass_fields__") or made or "Args:" in doc:
        said.append(f"`{thing.__name__}{_parameters(thing.__init__)}`\n")
    said.append(f"{_prose(doc.replace('; see :class:`AppBase` for its arguments', ''))}\n")
    if made:
        said.append(f"{_prose(made)}\n")
    twin = next(
        (
            other
            for _, _, things in PARTS
            for other in things
            if other.__name__ == of_the_other_colour(name) != name
        ),
        None,
    )
    methods = [line for member in _methods(thing) if (line := _method(*member, twin))]
    if methods:
        said.append("\n".join(methods) + "\n")
    return "\n".join(said)


def _methods(cls: type) -> list[tuple[str, Any]]:
    """Public methods and properties, those of our bases too if these are not documented by
    themselves.
    """
    documented = {thing for _, _, things in PARTS for thing in things}
    own = [
        base
        for base in cls.__mro__
        if base is cls or (base.__module__.startswith("pgflow") and base not in documented)
    ]
    found: dict[str, Any] = {}
    for base in own:
        for name, member in vars(base).items():
            if (
                not name.startswith("_")
                and name not in found
                and (callable(member) or isinstance(member, (property, staticmethod)))
            ):
                found[name] = member
    return list(found.items())


INTERNAL = {"ask", "wait", "definitions", "listens", "on"} | {
    "kind",
    "as_step",
    "args_codec",
    "verdict_codec",
    "encode_args",
    "statements",
    "declared",
    "timeout_",
    "spec",
    "issue",
    "calls",
    "has_compensation",
    "code",
    "issue_compensation",
    "issue_by_hand",
    "read_request",
}
"""Public in the language's sense only; the second set is what the engine asks of an effect."""


def _method(name: str, member: Any, twin: type | None) -> str | None:
    """A method and its docstring; of that only the first line, if the twin of the other colour has
    the same.
    """
    fn = member.fget if isinstance(member, property) else member
    doc = inspect.getdoc(fn)
    if (
        doc is None
        or (name in INTERNAL and "wait" not in doc.lower().split()[0])
        or "For handles of runs" in doc
    ):
        return None
    if (
        twin is not None
        and "\n" in doc
        and of_the_other_colour(doc) == inspect.getdoc(getattr(twin, name, None))
    ):
        doc = f"{doc.splitlines()[0].removesuffix('.')}; see :meth:`{twin.__name__}.{name}`."
    head = f"- `{name}`" if isinstance(member, property) else f"- `{_signature(fn)}`"
    return f"{head}: {textwrap.indent(_prose(doc), '  ').lstrip()}"


def _signature(fn: Any) -> str:
    """A call as people write it. Of overloads, the one with options."""
    overloads = typing.get_overloads(inspect.unwrap(fn))
    target = overloads[-1] if overloads else fn
    prefix = "async " if inspect.iscoroutinefunction(target) else ""
    return f"{prefix}{fn.__name__}{_parameters(target)}"


def _parameters(fn: Any) -> str:
    return f"({', '.join(_shown(list(inspect.signature(fn).parameters.values())))})"


def _shown(parameters: list[inspect.Parameter]) -> list[str]:
    shown, starred = [], False
    for parameter in parameters:
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.VAR_POSITIONAL:
            starred = True
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        shown.append(stars + _field(parameter))
    return shown


def _field(parameter: inspect.Parameter) -> str:
    if parameter.default is parameter.empty:
        return parameter.name
    default = repr(parameter.default)
    return f"{parameter.name}={'...' if '<' in default or len(default) > 30 else default}"


def _prose(doc: str) -> str:
    """A docstring in Markdown: sections as lists, cross-references as code, examples as blocks."""
    doc = re.sub(
        r":(?:func|class|meth|mod):`~?(?:pgflow\.(?:(?:_\w+\.)+(?:[a-z_]+\.)*(?=\w+`)|(?=[a-z_]+`)))?([^`]*)`",
        r"`\1`",
        doc,
    ).replace("``", "`")
    out: list[str] = []
    lines = doc.splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        section = re.fullmatch(r"(Args|Returns|Raises|Attributes|Example)::?", line)
        code = line.endswith("::") and not section
        if not section and not code:
            out.append(line)
            at += 1
            continue
        if code:
            out.append(line[:-1])
        body, at = _indented(lines, at + 1)
        if code or (section and section[1] == "Example"):
            out += ["", "```text", *body, "```", ""]
        elif section and section[1] == "Returns":
            out += [f"Returns: {' '.join(part.strip() for part in body)}", ""]
        elif section:
            out += [
                *([""] if out and out[-1] else []),
                *(["Raises:", ""] if section[1] == "Raises" else []),
                *_items(body),
                "",
            ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).strip()


def _indented(lines: list[str], at: int) -> tuple[list[str], int]:
    body = []
    while at < len(lines) and (not lines[at].strip() or lines[at].startswith(" ")):
        body.append(lines[at])
        at += 1
    return textwrap.dedent("\n".join(body)).strip("\n").splitlines(), at


def _items(body: list[str]) -> list[str]:
    items: list[str] = []
    for line in body:
        if line.startswith(" "):
            items[-1] += f" {line.strip()}"
        elif line.strip():
            name, _, words = line.partition(": ")
            items.append(f"- `{name}`: {words}")
    return items


# ---------------------------------------------------------------- errors


def errors_page() -> str:
    """The tree of errors, with the SQLSTATE of those that the stored functions raise."""
    said = [
        MADE,
        "# Errors\n",
        (
            "Every error is a `PgflowError`. Those with a code are raised by the stored functions "
            "under that SQLSTATE, so SQL sees them too. "
            "A message says what happened, to which run or step, and what to do next.\n"
        ),
        "| error | SQLSTATE | |\n|---|---|---|",
    ]
    said += [
        f"| {'· ' * depth}`{cls.__name__}` | {_code(cls)} | {_sentence(cls)} |"
        for cls, depth in _tree(errors.PgflowError, 0)
    ]
    said.append(
        "\nThe dots show what is derived from what: `except InvalidArgument` catches `NotStorable` "
        "too, and `except SetupError` all that follow it.\n\n"
        "What a step raises is rebuilt in the workflow as itself where its class is a builtin, or "
        "is named in the step's `raises=` or the app's "
        "`errors=`; else it is a `StepFailed`. What a workflow raises is the `__cause__` of the "
        "`RunFailed` that `result()` raises.\n\n"
        "The exit codes of the command line are in [its page](../cli.md#exit-codes).\n"
    )
    return "\n".join(said)


def _tree(cls: type, depth: int) -> list[tuple[type, int]]:
    order = list(vars(errors).values())
    children = sorted(
        (child for child in cls.__subclasses__() if child.__module__ == errors.__name__),
        key=order.index,
    )
    return [(cls, depth), *(found for child in children for found in _tree(child, depth + 1))]


def _code(cls: type) -> str:
    code = vars(cls).get("sqlstate")
    return f"`{code}`" if code else ""


def _sentence(cls: type) -> str:
    first = (inspect.getdoc(cls) or "").split("\n\n")[0]
    return " ".join(first.replace("``", "`").split())


# ---------------------------------------------------------------- rules of the lint

PARTS_OF_RULES = {
    "PF1": (
        "What a replay cannot repeat",
        (
            "In workflow code: the functions under `@workflow`, and what they use of the same module. "
            "Bodies of steps may do all of this."
        ),
    ),
    "PF2": ("How code flows around calls", "In workflow code too."),
    "PF3": ("What is declared", "Wherever it is declared."),
    "PF9": (
        "Comments to the check",
        "A comment `# pgflow: ignore[PF101]` on the line of a finding allows it.",
    ),
}


def rules_page() -> str:
    """Every rule of `pgflow check`, with a module that breaks it and one that does not."""
    said = [
        MADE,
        "# Rules of pgflow check\n",
        (
            "[Check workflow code](../how-to/check-workflows.md) says how to use it. A code never "
            "changes its meaning. Of each rule: what goes wrong, what to do, a module with a finding "
            "and one without.\n"
        ),
        "| code | |\n|---|---|",
    ]
    said += [
        f"| [{rule.code}](#{rule.code.lower()}-{rule.title.lower().replace(' ', '-')}) | "
        f"{rule.title} |"
        for rule in lint.RULES
    ]
    for prefix, (title, words) in PARTS_OF_RULES.items():
        said += [f"\n## {title}\n\n{words}"]
        said += [_rule(rule) for rule in lint.RULES if rule.code.startswith(prefix)]
    return "\n".join(said) + "\n"


def _rule(rule: lint.Rule) -> str:
    blocks = [
        f"```python\n# {rule.code.lower()}_{name}.py\n{text}```"
        for name, text in (("bad", rule.bad), ("good", rule.good))
    ]
    return f"\n### {rule.code} {rule.title}\n\n{_capital(rule.why)}. {_capital(rule.instead)}.\n\n{blocks[0]}\n\nWithout a finding:\n\n{blocks[1]}"


def _capital(text: str) -> str:
    return (
        text
        if "(" in text.split(maxsplit=1)[0] or text.startswith(("pgflow", "asyncio"))
        else text[0].upper() + text[1:]
    )


# ---------------------------------------------------------------- SQL

VERBS = """
select p.proname, pg_get_function_identity_arguments(p.oid), pg_get_function_arguments(p.oid), pg_get_function_result(p.oid), obj_description(p.oid),
  array(select r.rolname::text from pg_roles r where r.rolname ~ '^pgflow_(client|worker|operator)$' and has_function_privilege(r.rolname, p.oid, 'execute') order by 1)
from pg_proc p where p.pronamespace = 'pgflow'::regnamespace and p.proname !~ '_$' order by p.proname
"""
RELATIONS = """
select c.relname, obj_description(c.oid),
  array(select a.attname::text || chr(9) || format_type(a.atttypid, a.atttypmod) || chr(9) || coalesce(col_description(c.oid, a.attnum), '')
        from pg_attribute a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped order by a.attnum)
from pg_class c where c.relnamespace = 'pgflow'::regnamespace and c.relkind = any(%s) and not c.relispartition order by c.relname
"""


def sql_page(conn: psycopg.Connection[Any]) -> str:
    """Views, functions, tables and kinds of units, from the catalog and its comments."""
    said = [
        MADE,
        "# SQL\n",
        (
            "Everything is in the schema `pgflow`. Views may be read by the four roles; functions are "
            "granted as shown; tables are granted to nobody, "
            "and are here for those who want to understand. See "
            "[roles](../how-to/managed-postgres.md#roles).\n"
        ),
        "## Views\n",
    ]
    said += [_relation(*row) for row in conn.execute(RELATIONS, (["v"],))]
    said.append("## Functions for applications\n")
    verbs = list(conn.execute(VERBS))
    public = [verb for verb in verbs if {"pgflow_client", "pgflow_operator"} & set(verb[5])]
    said += [_function(*verb) for verb in public]
    said.append(
        "## Functions of workers\n\nGranted to `pgflow_worker` only, and subject to change: the "
        "library calls them.\n"
    )
    said += [
        f"- `{name}`: {words}"
        for name, _, _, _, words, roles in verbs
        if roles == ["pgflow_worker"]
    ]
    said.append("\n## Tables\n")
    said += [_relation(*row) for row in conn.execute(RELATIONS, (["r", "p"],))]
    said.append(
        "## Kinds of units\n\nWhat `timeline` shows as `event`. A kind that ends its call is its "
        "outcome.\n\n| event | ends its call | |\n|---|---|---|"
    )
    said += [
        f"| `{name}` | {'yes' if ends else ''} | {words} |"
        for name, ends, words in conn.execute(_kinds(conn))
    ]
    return "\n".join(said) + "\n"


def _kinds(conn: psycopg.Connection[Any]) -> LiteralString:
    columns = [
        name
        for (name,) in conn.execute(
            "select attname from pg_attribute where attrelid = 'pgflow.unit_kind'::regclass and "
            "attnum > 0 order by attnum"
        )
    ]
    assert columns[:3] == ["kind", "name", "is_terminal"], columns
    return "select name, is_terminal, written_by from pgflow.unit_kind order by name"


def _relation(name: str, words: str | None, columns: list[str]) -> str:
    rows = [column.split("\t") for column in columns]
    lines = "\n".join(f"| `{column}` | {kind} | {said} |" for column, kind, said in rows)
    return f"### `{name}`\n\n{words}.\n\n| column | type | |\n|---|---|---|\n{lines}\n"


def _function(
    name: str, _identity: str, arguments: str, result: str, words: str, roles: list[str]
) -> str:
    taken = re.sub(r"::[a-z []+\]?(?=,|$)", "", re.sub(r"(?:, )?OUT .*", "", arguments))
    given = ", ".join(re.findall(r"OUT (\w+ [^,]+)", arguments)) or result
    return f"### `{name}`\n\n`{name}({taken})` → `{given}`\n\n{words}. For {', '.join(f'`{role}`' for role in roles)}.\n"
