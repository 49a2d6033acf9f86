"""``pgflow tick``: what cron runs. It reclaims, drains,
and ends when there is nothing left to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

from pgflow import inspect
from pgflow.console.output import as_object, duration, many, note, when
from pgflow_cli.look import github
from pgflow_cli.look.database import Database
from pgflow_cli.look.declaring import Made, arg, opt
from pgflow_cli.look.failures import DONE, FAILED, NEEDS_A_PERSON, TIME_LIMIT
from pgflow_cli.look.options import Answer
from pgflow_cli.look.parsing import DeadAfter, parse_amounts, seconds_option
from pgflow_cli.look.selection import split_words
from pgflow_cli.ops.options import QueueNames, QuietLogs

if TYPE_CHECKING:
    from pgflow_cli.ops.drain import Drained


def _limits(
    *,
    max_runtime: Annotated[
        float, seconds_option("--max-runtime", shown="1h", least=0.001)
    ] = 3600.0,
    budget: list[str] | None = None,
    grace: Annotated[float, seconds_option("--grace", shown="8s")] = 8.0,
    linger: Annotated[float, seconds_option("--linger", shown="0s")] = 0.0,
) -> dict[str, Any]:
    """Return the limits of a drain but for its begin.

    Args:
        budget: UNIT=AMOUNT: take no more runs once those taken have spent this much.
        max_runtime: End by then, the grace included: 90s, 10m. Keep it below the job's own limit.
        grace: Time for which running steps may go on at the end.
        linger: Also wait for timers that are due so soon.
    """
    grace = min(grace, max_runtime / 2)
    budgets = parse_amounts(budget)
    return {"runtime": max_runtime, "grace": grace, "linger": linger, "budget": budgets}


def _settings(
    *,
    max_runs: Annotated[int | None, opt(min=1)] = None,
    concurrency: Annotated[int, opt(min=1)] = 50,
    queue: QueueNames = None,
    dead_after: DeadAfter = 10.0,
) -> dict[str, Any]:
    """Return options of the worker, as `AsyncApp.worker` takes them.

    Args:
        max_runs: Take no more runs than this.
        concurrency: Runs to work on at once.
    """
    from pgflow.app import Tally

    return {
        "queues": sorted(set(split_words(queue))),
        "concurrency": concurrency,
        "poll_seconds": 0.5,
        "dead_after": dead_after,
        "tally": Tally(max_runs),
    }


def tick(
    target: Annotated[str, arg(metavar="MODULE[:APP]")],
    *,
    limited: Annotated[dict[str, Any], Made(_limits)],
    given: Annotated[dict[str, Any], Made(_settings)],
    exclusive: bool = False,
    logs: QuietLogs,
    db: Answer,
) -> None:
    """Drains queues once, for cron: ends when nothing is ready.

    It takes up what a runner that died has left, fires schedules, works on what is ready or due,
    and ends with a summary and the time of the next timer or slot. SIGTERM hands back what is not
    done. In GitHub Actions it also annotates the run.

    Args:
        target: Module or file with the workflows.
        exclusive: Do nothing if another exclusive tick of these queues is at work.
    """
    import asyncio

    from pgflow_cli.look.targets import load_app
    from pgflow_cli.ops.drain import Limits, drain_once
    from pgflow_cli.ops.serving import Stop, leave, spare_what_is_loaded

    logs.set_up()
    stop = Stop()
    found = db.dsn
    limits = Limits(**limited, began_at=db.now)
    db.close()
    app = load_app(target, found, without_session=True)
    spare_what_is_loaded()
    queues = given["queues"] or app.queues
    settings = {**given, "queues": queues, "grace_seconds": limits.grace}
    with _alone(found, queues) if exclusive else nullcontext(True) as is_alone:
        if not is_alone:
            note("Another exclusive tick of these queues is at work: nothing was done.")
            return
        drained = asyncio.run(drain_once(app, settings, limits, stop))
    with Database(found) as again:
        workflows, since = list(app.definitions.workflows), limits.began_at
        taken = sorted(drained.taken)
        # Those that a dead worker has made stuck meanwhile too.
        runs = again.ask(
            inspect.list_outcomes(taken, stuck_since=since, queues=queues, workflows=workflows)
        )
    summary = _sum_up(drained, runs)
    db.answer(summary, _in_words(summary))
    failed = [run for run in runs if run.status in ("failed", "stuck")]
    github.report(summary, [as_object(run, _OUTCOME) for run in failed])
    leave(summary["exit_code"])


@contextmanager
def _alone(dsn: str, queues: Sequence[str]) -> Iterator[bool]:
    """Take the lock of ticks; yield False if another tick has it. It is a transaction's, since a
    pooler lends sessions; it keeps no snapshot.
    """
    with Database(dsn) as db, db.connection.transaction(force_rollback=True):
        db.connection.execute("set local idle_in_transaction_session_timeout = 0")
        yield db.client.begin_tick(queues)


# ---------------------------------------------------------------- its outcome


_COUNTED = ("completed", "failed", "cancelled", "waiting", "queued", "running", "paused", "stuck")
_OUTCOME = ("key", "status", "workflow", "why")


def _sum_up(drained: Drained, runs: list[inspect.RunRow]) -> dict[str, Any]:
    summary: dict[str, Any] = {
        "outcome": drained.outcome,
        "seconds": round(drained.seconds, 3),
        "taken": len(drained.taken),
        **{status: sum(run.status == status for run in runs) for status in _COUNTED},
        "work_left": drained.work_left,
        "next_wake_at": drained.next_wake_at,
    }
    return {**summary, "exit_code": _exit_code(summary)}


def _exit_code(summary: dict[str, Any]) -> int:
    """Return the exit code of the worst outcome. A tick that was asked to stop may leave work."""
    if summary["stuck"]:
        return NEEDS_A_PERSON
    if summary["failed"] or summary["outcome"] == "broken":
        return FAILED
    ended_early = summary["outcome"] in ("out of time", "full")
    return TIME_LIMIT if summary["work_left"] and ended_early else DONE


def _in_words(summary: dict[str, Any]) -> str:
    counts = ", ".join(f"{summary[status]} {status}" for status in _COUNTED if summary[status])
    taken = f"{many(summary['taken'], 'run')} taken" + (f" ({counts})" if counts else "")
    left = " There is work left." if summary["work_left"] else ""
    ended = f"{summary['outcome'].capitalize()} after {duration(summary['seconds'])}"
    return f"{ended}: {taken}.{left} Next wake-up: {when(summary['next_wake_at']) or 'none'}."
