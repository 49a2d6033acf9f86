"""Output for GitHub Actions: annotations at a run or at lines of code, a summary at the job,
outputs for later steps.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pgflow.console.output import when

Row = Mapping[str, Any]

MAX_ANNOTATIONS = 10
"""GitHub shows no more of a kind for one step."""


def report(summary: Row, troubles: Sequence[Row]) -> None:
    """Report a tick to GitHub Actions; do nothing elsewhere.

    Args:
        summary: Counts, how it ended, when the next timer is due.
        troubles: Runs that failed or are stuck: key, status, workflow, why.
    """
    if os.environ.get("GITHUB_ACTIONS") == "true":
        annotate(troubles)
    _append("GITHUB_STEP_SUMMARY", markdown(summary, troubles))
    names = ("outcome", "taken", "failed", "stuck", "next_wake_at")
    _append("GITHUB_OUTPUT", "".join(f"{name}={_output(summary[name])}\n" for name in names))


def _output(value: Any) -> str:
    return "" if value is None else value.isoformat() if hasattr(value, "isoformat") else str(value)


def _append(variable: str, text: str) -> None:
    path = os.environ.get(variable)
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text)


def annotate(troubles: Sequence[Row]) -> None:
    """Writes annotations to standard error, which GitHub reads too:
    standard output is the summary's.
    """
    for row in troubles[:MAX_ANNOTATIONS]:
        level = "error" if row["status"] == "failed" else "warning"
        title = f"run {row['key']} {'is stuck' if row['status'] == 'stuck' else 'failed'}"
        print_command(level, f"{row['workflow']}: {row['why'] or 'no reason given'}", title=title)


def annotate_lines(findings: Sequence[Row]) -> None:
    """Writes an annotation for each line of code that a check has something against.

    Args:
        findings: file, as seen from here; line; column; title; message.
    """
    for found in findings:
        place = {"line": found["line"], "col": found["column"], "title": found["title"]}
        file = _in_repository(found["file"])
        print_command("error", found["message"], file=file, **place)


def _in_repository(file: str) -> str:
    """Return a path as GitHub knows it: seen from the root of the checkout."""
    root = os.environ.get("GITHUB_WORKSPACE")
    path = os.path.abspath(file)  # noqa: PTH100 - resolve() would follow links
    return os.path.relpath(path, root) if root and path.startswith(os.path.join(root, "")) else file  # noqa: PTH118


def print_command(level: str, message: str, **properties: Any) -> None:
    """Print an annotation, as `command` makes it."""
    print(command(level, message, **properties), file=sys.stderr, flush=True)


def command(level: str, message: str, **properties: Any) -> str:
    """Return an annotation as GitHub reads it.

    Args:
        level: error, warning or notice.
        message: Text of it; may have several lines.
        **properties: Place at which it is shown, and its title.
    """
    given = ",".join(f"{name}={_escape_property(str(value))}" for name, value in properties.items())
    return f"::{level} {given}::{_escape_message(message)}"


def _escape_message(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _escape_property(text: str) -> str:
    return _escape_message(text).replace(":", "%3A").replace(",", "%2C")


def markdown(summary: Row, troubles: Sequence[Row]) -> str:
    """Return the summary as a page of Markdown."""
    names = ("taken", "completed", "failed", "cancelled", "waiting", "queued", "stuck")
    lines = [
        f"### pgflow tick: {summary['outcome']} after {summary['seconds']:.1f} s",
        "",
        "| " + " | ".join(names) + " |",
        "|" + "---:|" * len(names),
        "| " + " | ".join(str(summary[name]) for name in names) + " |",
        "",
        f"Next wake-up: {when(summary['next_wake_at']) or 'none'}.",
    ]
    if summary["work_left"]:
        lines.append("There is work left: the next tick goes on with it.")
    if troubles:
        lines += ["", "| run | workflow | status | why |", "|---|---|---|---|"]
        lines += [
            f"| {_cell(row['key'])} | {_cell(row['workflow'])} | {row['status']} | "
            f"{_cell(row['why'] or '')} |"
            for row in troubles[:50]
        ]
    return "\n".join(lines) + "\n\n"


def _cell(text: str) -> str:
    return (
        " ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;")[:300]
    )
