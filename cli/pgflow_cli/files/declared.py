"""Shared parts of the commands on declared workflows: reading one,
and showing the problems of files.

Files come from anywhere. What is quoted from them is shown without control characters, which could
play with the terminal; and JSON falls back to escapes where a text cannot be written as UTF-8.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow.console.output import dump, say, shown
from pgflow_cli.look.declaring import arg, opt
from pgflow_cli.look.failures import FAILED, Ended, Mistake, opening
from pgflow_cli.look.parsing import refuse_no_folder

if TYPE_CHECKING:
    from rich.text import Text

    from pgflow.declare import Graph, Problem, Verdict

File = Annotated[
    Path, arg("A workflow (.yaml, .sop.md), or the folder of a workspace.", metavar="FILE")
]


class Dialect(StrEnum):
    """Family whose rules hold where they differ."""

    ARCHON = "archon"
    ION = "ion"


SearchPath = Annotated[
    list[Path] | None,
    opt(
        "Folder in which a DAG finds other workflows, commands and scripts, after its own; "
        "may be given again.",
        "--path",
        metavar="FOLDER",
    ),
]


ProviderMap = Annotated[
    list[str] | None,
    opt(
        "FILE: provider to use where it names WORD; may be given again.",
        "--map",
        metavar="WORD=PROVIDER",
    ),
]


Watch = Annotated[bool, opt("Do it again whenever a file changes, until Ctrl-C.", "--watch")]


def check_search(folders: list[Path] | None) -> tuple[Path, ...]:
    """Return the folders to search.

    Raises:
        Mistake: One of them is not a folder.
    """
    for folder in folders or ():
        refuse_no_folder("--path", folder)
    return tuple(folders or ())


def read_graph(
    path: Path, *, tells: bool = False, search: tuple[Path, ...] = (), code: int = FAILED
) -> Graph:
    """Return the graph of one file or workspace.

    Args:
        path: The file, or the folder.
        tells: True to print warnings even if the file is sound.
        search: Folders in which a DAG finds others, after its own.
        code: Exit code for a file with errors. A command that judges files exits as failed.

    Raises:
        Mistake: The file does not exist.
        Ended: The file has errors; they are already printed.
    """
    from pgflow.declare.reading import read_one

    verdict = read_one(path, search=search)
    if verdict.graph is not None and verdict.ok:
        if tells:
            say_problems(verdict)
        return verdict.graph
    if any(problem.kind == "read_error" for problem in verdict.errors):
        raise Mistake(f"{shown(verdict.file)}: {'; '.join(map(_sentence, verdict.errors))}")
    say_problems(verdict)
    raise Ended(code)


def refuse_unknown(
    what: str, given: Iterable[str], known: Sequence[str], graph: Graph, which: str = ""
) -> None:
    """Refuse names of parts that a graph does not have.

    Raises:
        Mistake: It has no such part; the message names those that it has.
    """
    for name in given:
        if name not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise Mistake(f"{shown(graph.name)} has no {what} {name!r}{which}: {has}")


def say_problems(verdict: Verdict) -> None:
    """Print the problems of a file that was to be used, on standard error."""
    for line in problem_lines(verdict):
        say(line, error=True)


def problem_lines(verdict: Verdict) -> Iterator[Text]:
    """Yield the problems of a file in the format of compilers (``file:line:column: error:
    message``), each with its remedy below it.

    A note names what a sound file takes from missing files.
    """
    for kind, style, problem in _kinds(verdict):
        from rich.text import Text  # a sound file needs none

        file, message = _file_and_message(verdict, problem)
        place = "".join(
            f":{number}" for number in (file, problem.line, problem.column) if number is not None
        )[1:]
        yield Text.assemble((f"{place}: ", "bold"), (f"{kind}: ", style), message)
        if problem.hint:
            yield Text(f"    {shown(problem.hint)}", style="bright_black")


def _kinds(verdict: Verdict) -> Iterator[tuple[str, str, Problem]]:
    for kind, style, problems in (
        ("error", "bold red", verdict.errors),
        ("warning", "yellow", verdict.warnings),
        ("note", "cyan", verdict.unresolved),
    ):
        for problem in problems:
            yield kind, style, problem


def _file_and_message(verdict: Verdict, problem: Problem) -> tuple[str, str]:
    """Return the place and the message of a problem; of a workspace the file that the message
    begins with, so that editors find it.
    """
    name, separator, rest = problem.message.partition(": ")
    path = os.path.join(verdict.file, name)  # noqa: PTH118
    if separator and problem.line is not None and os.path.isfile(path):  # noqa: PTH113 - a name may be any text
        return shown(path), shown(rest)
    return shown(verdict.file), shown(problem.message)


def _sentence(problem: Problem) -> str:
    return shown(problem.message) + (f" ({shown(problem.hint)})" if problem.hint else "")


def say_json(value: Any, *, indent: int | None = None) -> None:
    """Print a value as JSON on standard output."""
    text = dump(value, indent=indent)
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a pair, as from a name of a file that is not UTF-8
        text = json.dumps(value, indent=indent)
    typer.echo(text)


def write_text(path: Path, text: str) -> None:
    """Write a whole file.

    Raises:
        Mistake: It cannot be written.
    """
    with opening(path, "written"):
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
