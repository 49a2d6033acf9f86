"""``pgflow audit`` and ``pgflow redact``: the story of a run, whether the journal is what it was,
and a value taken out of it.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from pgflow import inspect
from pgflow.console.audit import Event, headline, page, story_of
from pgflow.console.output import Form, as_object, console, dump, note, plain, when
from pgflow_cli.look.database import Database, look_until
from pgflow_cli.look.declaring import Group, arg, make_group, opt
from pgflow_cli.look.failures import FAILED, Ended, Mistake, opening
from pgflow_cli.look.options import Answer, AsJson, Db, choose_form, operator
from pgflow_cli.look.selection import Key, find

PATIENCE_SECONDS = 5.0
"""Longest wait for transactions that have started a run and are still open."""


_RUN = (
    "key", "status", "workflow", "run_id", "generation", "created_at", "finished_at", "output",
    "error", "why",
)  # fmt: skip
_OWED = ("name", "state", "opened_at", "effect", "ref")


class AuditGroup(Group):
    """Group that reads a first word other than one of its commands as a run's key: ``pgflow audit
    KEY``.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Puts ``show`` before the key of a run."""
        first = next((argument for argument in args if not argument.startswith("-")), None)
        if first is not None and first not in self.commands:
            args = ["show", *args]
        parsed: list[str] = super().parse_args(ctx, args)
        return parsed


audit = make_group(
    "audit",
    "Shows a run's audit trail, or proves that it is unchanged.",
    cls=AuditGroup,
    no_args_is_help=True,
)


@audit.command("show")
def show_audit(
    key: Key, db: Db, *, as_html: Annotated[bool, opt("--html")] = False, as_json: AsJson = None
) -> None:
    """Shows what a run decided and did, why, and what it owes.

    Every line is a unit of the run's journal, which is append-only: it was recorded as the run
    went, and cannot be changed.

    Args:
        as_html: Answer with a page for the browser.
    """
    if as_html and as_json is not None:
        raise Mistake(
            f"--html and --{'json' if as_json else 'table'} exclude each other: pass one of them"
        )
    found = find(db, key, inspect.read_audit(key))
    events = story_of(found)
    if as_html:
        typer.echo(page(found, events))
    elif choose_form(as_json=as_json) is Form.JSON:
        parts = {
            "run": as_object(found.run, _RUN),
            "events": [asdict(event) for event in events],
            "owed": [as_object(debt, _OWED) for debt in found.owed],
        }
        typer.echo(dump(parts))
    else:
        _print_story(found, events)


def _print_story(found: inspect.Audit, events: list[Event]) -> None:
    out = console()

    def line(first: str, *cells: str) -> None:
        from rich.text import Text

        parts = [Text(first.ljust(9)), *(plain(cell) for cell in cells if cell)]
        out.print(Text("  ").join(parts), soft_wrap=True)

    out.print(plain(headline(found.run)), soft_wrap=True)
    out.print(plain(f"started {when(found.run.created_at)}"))
    if not events:
        out.print(plain("It decided nothing and has done nothing that cannot be repeated."))
    for event in events:
        line(f"{event.at:%H:%M:%S}", event.what.ljust(9), event.name, event.text)
    for debt in found.owed:
        line("owes", f"{debt.name}: {debt.state} since {when(debt.opened_at)}, {debt.effect}")


AnchorFile = Annotated[
    Path | None,
    opt("An anchor that was kept elsewhere, or - for standard input.", "--anchor", metavar="FILE"),
]


@audit.command("verify")
def verify(
    db: Answer, *, run: Annotated[str | None, opt(metavar="KEY")] = None, anchor: AnchorFile = None
) -> None:
    """Compares the journal with its seals.

    Every unit, outcome and input must be unchanged since it was sealed. Without an anchor, it is
    compared with the seals in the same database. An anchor, kept elsewhere, also detects changes by
    someone who can write to the database. Exit code 1 if something has changed.

    Args:
        run: Only this run.
    """
    kept = None if anchor is None else _read(anchor, "an anchor")
    lag = db.ask(inspect.read_seal_lag())
    if lag.last_round is None and kept is None:
        raise Mistake("nothing is sealed yet: `pgflow audit on` has workers seal the journal")

    def progress(runs: int) -> None:
        if db.form is not Form.JSON and runs >= 10_000 and runs % 10_000 < 1000:
            note(f"{runs:,} runs compared")

    found = db.ask(inspect.verify_seals(run, anchor=kept, progress=progress))
    _print(found, db)
    if db.form is not Form.JSON and run is None and (lag.runs_behind or lag.runs_pending):
        note(f"not sealed yet: {lag.runs_behind:,} runs; may still grow: {lag.runs_pending:,}")
    if found.findings:
        raise Ended(FAILED)


def _print(found: inspect.Verification, db: Database) -> None:
    if db.form is Form.JSON:
        names = ("finding", "place", "detail", "run_id")
        findings = [as_object(finding, names) for finding in found.findings]
        names = ("runs", "rounds", "days", "anchored_rounds")
        typer.echo(dump({**as_object(found, names), "findings": findings}))
        return
    compared = f"{found.runs:,} runs, {found.rounds:,} rounds and {found.days:,} days"
    if found.anchored_rounds is not None:
        compared += f", {found.anchored_rounds:,} of the rounds by the anchor,"
    empty = f"Nothing was changed: {compared} are as they were."
    db.print(found.findings, "finding place detail*60", empty)


@audit.command("anchor")
def anchor(db: Db) -> None:
    """Prints the roots of all days, to be kept elsewhere.

    Store it where no writer of this database has access: in another account, in a register of a
    third party, on paper. `pgflow audit verify` compares it with the database.
    """
    typer.echo(json.dumps(db.ask(inspect.read_anchor()), indent=1))


@audit.command("proof")
def proof(key: Key, db: Db, *, anchor: AnchorFile = None) -> None:
    """Prints a proof, with which you can check a run against an anchor.

    It holds names, times and hashes, and no values. `pgflow audit check` checks it without a
    database, as does the function pgflow.inspect.check_proof. Without an anchor it fits one that is
    taken now, and once the day is over every later one.
    """
    kept = None if anchor is None else _read(anchor, "an anchor")
    found = db.ask(inspect.read_proof(key, anchor=kept))
    typer.echo(json.dumps(found, ensure_ascii=False, indent=1))


@audit.command("check")
def check(
    proof: Annotated[Path, arg(metavar="PROOF")], *, anchor: Annotated[Path, opt(metavar="FILE")]
) -> None:
    """Checks a proof against an anchor, without a database.

    Args:
        proof: Output of `pgflow audit proof`.
        anchor: An anchor that was taken later.
    """
    shown, kept = _read(proof, "a proof"), _read(anchor, "an anchor")
    try:
        problems = inspect.check_proof(shown, kept)
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise Mistake(f"{proof} or {anchor} is damaged: {error!r}") from error
    for problem in problems:
        typer.echo(problem)
    if problems:
        raise Ended(FAILED)
    typer.echo(f"The run {shown['key']} is as it was sealed.")


@audit.command("on")
def switch_on(db: Db) -> None:
    """Has workers seal the journal from now on, and what is in it."""
    db.client.set_sealing(is_on=True, by=operator())
    typer.echo("Workers seal the journal.")


@audit.command("off")
def switch_off(db: Db) -> None:
    """Has workers seal nothing more; the seals stay."""
    db.client.set_sealing(is_on=False, by=operator())
    typer.echo("Workers seal nothing more.")


@audit.command("seal")
def seal(db: Answer) -> None:
    """Seals all that there is, at once.

    Workers do it by themselves once `pgflow audit on` was called; this is for where none is, and
    before an anchor is taken.
    """
    before = db.ask(inspect.read_seal_lag())
    newest = before.passed_run_id + before.runs_behind
    sealed = 0

    def look() -> inspect.SealLag:
        nonlocal sealed
        sealed += db.client.seal()
        return db.ask(inspect.read_seal_lag())

    lag = look_until(look, lambda lag: lag.passed_run_id >= newest, PATIENCE_SECONDS)
    if before.cycle_began_at == lag.cycle_began_at:
        sealed += db.client.seal()  # a worker was in the middle of those that may still grow
    db.answer({"sealed": sealed}, f"{sealed:,} seals made.")
    if lag.passed_run_id < newest:
        note(
            "not sealed yet: runs whose number is above "
            f"{lag.passed_run_id:,}, since a transaction that started one is open"
        )


def _read(path: Path, what: str) -> dict[str, Any]:
    """Return the object in a file of JSON.

    Raises:
        Mistake: The file cannot be read, or has no object.
    """
    with opening(path):
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Mistake(f"{path} is not {what}: {error}") from error
    if not isinstance(found, dict) or f"pgflow_{what.split()[1]}" not in found:
        raise Mistake(f"{path} is not {what}: `pgflow audit {what.split()[1]}` writes one")
    return found


def redact(
    key: Key,
    part: Annotated[str, arg(metavar="PART")],
    db: Answer,
    *,
    why: str,
    generation: Annotated[int | None, opt(min=1)] = None,
) -> None:
    """Replaces a value of a run by its hash, permanently.

    The run must have ended. Its seals stay valid, and a unit of its journal says who did it and
    why; it cannot be replayed any more. `pgflow logs --json` shows the numbers of units. What was
    removed stays in the files until a vacuum, and in backups.

    Args:
        part: Number of the unit in the journal, input, result, or update:ID.
        why: Reason; kept in the journal.
        generation: Generation of the run; else the newest.
    """
    seq = int(part) if part.isdecimal() and len(part) < 10 else None
    update_id = part.removeprefix("update:") if part.startswith("update:") else None
    if seq is None and not update_id and part not in ("input", "result"):
        raise Mistake(
            f"what is redacted is a unit by its number, input, result, or update:ID, not {part!r}"
        )
    by, answer = operator(), {"key": key, "part": part}
    if not update_id:
        what: Any = "unit" if seq is not None else part
        hashed = db.client.redact(key, seq, why=why, by=by, what=what, generation=generation)
        shown = f"unit {seq}" if seq is not None else f"the {part}"
        text = f"Redacted {shown} of run {key}; its hash is {hashed}."
        db.answer({**answer, "sha256": hashed, "why": why}, text)
        return
    if generation is not None:
        raise Mistake("an update is redacted in all generations: leave --generation out")
    with db.client.transaction():
        removed = db.client.redact_update(key, update_id, why=why, by=by)
    text = f"Redacted update {update_id} of run {key}; values: {removed}."
    db.answer({**answer, "values": removed, "why": why}, text)
