"""``pgflow dry-run``: what a run of a declared workflow would do,
told from outputs that are made up.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pgflow_cli.files.declared import File, read_graph, say_json
from pgflow_cli.look.failures import Mistake
from pgflow_cli.look.output import (
    STYLES,
    AsJson,
    Column,
    Form,
    Row,
    choose_form,
    console,
    make_table,
    note,
    plain,
    shown,
)
from pgflow_cli.look.parsing import parse_input

if TYPE_CHECKING:
    from rich.text import Text

    from pgflow.declare import DryRun, Graph

LARGEST_STUBS_BYTES = 64 << 20

Stubs = Annotated[
    str | None,
    typer.Option(
        help="Outputs of nodes: a file with a JSON object (or YAML), node id to output; - is "
        "standard input."
    ),
]
Message = Annotated[str, typer.Option(help="What the person says who starts the run.")]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", help="An input: NAME=TEXT or NAME:=JSON; may be repeated."),
]


def dry_run(
    file: File,
    *,
    stubs: Stubs = None,
    message: Message = "",
    inputs: Inputs = None,
    as_json: AsJson = None,
) -> None:
    """Tells what a run would do; nothing is run."""
    from pgflow.declare import dry_run as play
    from pgflow.declare.play.dryrun import EndlessDryRun

    form = choose_form(as_json=as_json)
    graph = read_graph(file)
    outputs, given = read_stubs(stubs), _check_inputs(graph, inputs)
    try:
        told = play(graph, stubs=outputs, message=message, inputs=given)
    except EndlessDryRun as error:
        raise Mistake(str(error)) from error
    if form is Form.JSON:
        say_json(told.as_json(), indent=2 if sys.stdout.isatty() else None)
    else:
        _draw(told)


def _check_inputs(graph: Graph, words: list[str] | None) -> dict[str, Any]:
    given = parse_input(words, None)
    names = [declared.name for declared in graph.inputs]
    for name in given:
        if name not in names:
            has = f"it has {', '.join(names)}" if names else "it has none"
            raise Mistake(f"{graph.name} has no input {name!r}: {has}")
    return given


# The stubs ----------------------------------------------------------------------------------------


def read_stubs(source: str | None) -> dict[str, Any]:
    """Outputs by node.

    Raises:
        Mistake: They cannot be read.
    """
    if source is None:
        return {}
    text = sys.stdin.read() if source == "-" else _stubs_text(Path(source))
    value = (
        _parse_yaml(text, source)
        if source.endswith((".yaml", ".yml"))
        else _parse_json(text, source)
    )
    if not isinstance(value, dict):
        raise Mistake(
            f'{source} holds no stubs: they are an object, as in {{"plan": "what it says"}}'
        )
    return value


def _stubs_text(path: Path) -> str:
    try:
        with path.open("rb") as opened:
            content = opened.read(LARGEST_STUBS_BYTES + 1)
        if len(content) > LARGEST_STUBS_BYTES:
            raise Mistake(f"{path} is larger than {LARGEST_STUBS_BYTES >> 20} MiB")
        return content.decode("utf-8-sig")
    except (OSError, ValueError) as error:
        raise Mistake(
            f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error


def _parse_json(text: str, source: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        what = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise Mistake(f"{source} is not JSON: {what}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number in JSON")


def _parse_yaml(text: str, source: str) -> Any:
    from pgflow.declare.text.yamlfile import YamlError, read_yaml

    try:
        return read_yaml(text).value
    except YamlError as error:
        place = f" (line {error.line})" if error.line is not None else ""
        raise Mistake(f"{source} is not YAML: {error}{place}") from error


# For people ---------------------------------------------------------------------------------------

_STATES = {
    "stubbed": "green",
    "completed": "green",
    "skipped": "bright_black",
    "failed": "red",
    "paused": "magenta",
}


def _draw(told: DryRun) -> None:
    from rich.text import Text

    out = console()
    rows = [entry.as_json() for entry in told.trace]
    if rows:
        out.print(make_table(_COLUMNS, rows, out.width))
        out.print("")
    out.print(
        Text.assemble("The run would end as ", (told.outcome, STYLES.get(told.outcome, "bold")))
    )
    if told.summary:
        out.print(
            Text.assemble("It would say: ", _cell(told.summary)), overflow="ellipsis", no_wrap=True
        )
    if told.missing:
        note(f"no stub for {', '.join(map(shown, told.missing))}")
    if told.unused:
        note(f"stubs that nobody asked for: {', '.join(map(shown, told.unused))}")


def _cell(value: Any) -> Text:
    return plain("" if value is None else shown(str(value)[:2_000]))


def _node(row: Row) -> Text:
    return _cell(row["id"] if row.get("iteration") is None else f"{row['id']} #{row['iteration']}")


def _state(row: Row) -> Text:
    from rich.text import Text

    return Text(row["state"], style=_STATES.get(row["state"], ""))


_COLUMNS = [
    Column("NODE", _node, most=36),
    Column("MODE", lambda row: plain(row["type"])),
    Column("STATE", _state),
    Column("OUTPUT", lambda row: _cell(row.get("output")), most=60, from_width=70),
    Column("WHY", lambda row: _cell(row["reason"]), takes_rest=True, most=200),
]
