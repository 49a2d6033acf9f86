"""``pgflow dry-run``: plays a declared workflow on stubbed outputs, and shows what a run would
do.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pgflow.console.output import STYLES, Form, console, make_table, many, note, plain, shown, table
from pgflow_cli.files.declared import (
    Dialect,
    File,
    SearchPath,
    Watch,
    check_search,
    read_graph,
    refuse_unknown,
    say_json,
)
from pgflow_cli.files.watching import again_and_again
from pgflow_cli.look.declaring import Made, opt
from pgflow_cli.look.failures import Mistake, mistaken, opening
from pgflow_cli.look.options import AnswerForm
from pgflow_cli.look.parsing import parse_input, refuse_no_folder

if TYPE_CHECKING:
    from pydantic import JsonValue
    from rich.text import Text

    from pgflow.declare import DryRun, Graph
    from pgflow.declare.graph import Node
    from pgflow.declare.play.placeholders import Misfits
    from pgflow.declare.play.trace import Entry

LARGEST_STUBS_BYTES = 64 << 20


@dataclass(frozen=True, kw_only=True)
class Given:
    """Options that say what is played.

    Args:
        stubs: Outputs of nodes: a file with a JSON object (or YAML), node id to output; - is
            standard input.
        message: Message of the person who starts the run.
        inputs: An input: NAME=TEXT or NAME:=JSON; may be repeated.
        default_stubs: Make up the outputs of nodes that have no stub.
        pause_at_gates: Stop where a person would be asked.
        reject: Reject this approval; once more for each time that it is given.
        dialect: A rejection cancels the run, or fails the node (ion).
    """

    stubs: str | None = None
    message: str = ""
    inputs: Annotated[list[str] | None, opt("--input")] = None
    default_stubs: bool = False
    pause_at_gates: bool = False
    reject: Annotated[list[str] | None, opt(metavar="NODE[=WHY]")] = None
    dialect: Dialect = Dialect.ARCHON

    def options(self, graph: Graph) -> dict[str, Any]:
        """Return them as `pgflow.declare.dry_run` takes them."""
        return {
            "made_up": _made_up if self.default_stubs else None,
            "rejections": _rejections(graph, self.reject),
            "dialect": self.dialect.value,
            "pause_at_gates": self.pause_at_gates,
            "stubs": read_stubs(self.stubs),
            "message": self.message,
            "inputs": _check_inputs(graph, self.inputs),
        }


@dataclass(frozen=True, kw_only=True)
class Programs:
    """Options that say whether the programs of nodes are run, and where.

    Args:
        exec_code: Run shells and programs that have no stub, here; not those of external nodes.
        cwd: With --exec-code: folder to work in; else this one.
        env: With --exec-code: a variable that programs get too.
    """

    exec_code: bool = False
    cwd: Path | None = None
    env: Annotated[list[str] | None, opt(metavar="NAME")] = None

    def __post_init__(self) -> None:
        """Refuse options that would have no effect.

        Raises:
            Mistake: There are such.
        """
        if not self.exec_code and (self.cwd is not None or self.env):
            raise Mistake("--cwd and --env require --exec-code")

    def play(self, graph: Graph, search: tuple[Path, ...], options: dict[str, Any]) -> DryRun:
        """Play a graph. Programs are run in a folder of their own for its files."""
        from pgflow.declare.durable import Settings
        from pgflow.declare.durable.rehearsal import Rehearsal

        if self.exec_code:
            refuse_no_folder("--cwd", self.cwd or Path())
        if not self.exec_code or graph.family == "icm":  # whose stages have agents only
            return _play(graph, options)
        settings = Settings(cwd=str(self.cwd or Path()), env=tuple(self.env or ()))
        with tempfile.TemporaryDirectory(prefix="pgflow-dry-run-") as folder:
            rehearsal = Rehearsal(graph, settings, folder, search)
            more = {"run_code": rehearsal.run, "directory": rehearsal.directory}
            return _play(graph, options | more)


def dry_run(
    file: File,
    *,
    given: Annotated[Given, Made(Given)],
    stubs_init: Annotated[Path | None, opt(metavar="FILE")] = None,
    programs: Annotated[Programs, Made(Programs)],
    search: SearchPath = None,
    watch: Watch = False,
    form: AnswerForm,
) -> None:
    """Shows what a run would do, without running it.

    Args:
        stubs_init: Write made-up outputs of all nodes to a new file, and end.
    """
    if stubs_init is not None and (given.stubs is not None or given.default_stubs or watch):
        raise Mistake("--stubs-init writes stubs and plays nothing: pass it alone")
    if watch and given.stubs == "-":
        raise Mistake("--watch reads the stubs again and again: name a file, not -")
    folders = check_search(search)
    if stubs_init is not None:
        write_stubs(read_graph(file, search=folders), stubs_init)
        return

    def once() -> None:
        graph = read_graph(file, search=folders)
        played = programs.play(graph, folders, given.options(graph))
        if form is Form.JSON:
            say_json(played.as_json(), indent=2 if sys.stdout.isatty() else None)
        else:
            _draw(played)
        sys.stdout.flush()

    if watch:
        again_and_again([file, *folders, *([Path(given.stubs)] if given.stubs else ())], once)
    once()


def _play(graph: Graph, options: dict[str, Any]) -> DryRun:
    from pgflow.declare import dry_run as play
    from pgflow.declare.play.dryrun import EndlessDryRun

    with mistaken(EndlessDryRun):
        return play(graph, **options)


def _made_up(node: Node) -> JsonValue:
    from pgflow.declare.play.placeholders import placeholder

    return placeholder(node, _misfits())


def _misfits() -> Misfits:
    """Return the validator of schemas; one that finds nothing where none is installed."""
    if find_spec("jsonschema") is None:
        return lambda _value, _schema: ""
    from pgflow.declare.durable.schemas import misfits

    return misfits


def _rejections(graph: Graph, words: list[str] | None) -> dict[str, list[str]]:
    """Reasons of rejections by approval."""
    from pgflow.declare.graph import Approval, every_node

    known = [node.id for node in every_node(graph.nodes) if isinstance(node.body, Approval)]
    wanted: dict[str, list[str]] = {}
    for word in words or ():
        name, equals, why = word.partition("=")
        refuse_unknown("approval", [name], known, graph)
        wanted.setdefault(name, []).append(why if equals else "Rejected")
    return wanted


def _check_inputs(graph: Graph, words: list[str] | None) -> dict[str, Any]:
    given = parse_input(words, None)
    refuse_unknown("input", given, [declared.name for declared in graph.inputs], graph)
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
    parse = _parse_yaml if source.endswith((".yaml", ".yml")) else _parse_json
    value = parse(text, source)
    if not isinstance(value, dict):
        text = 'they are an object, as in {"plan": "what it says"}'
        raise Mistake(f"{source} holds no stubs: {text}")
    return value


def _stubs_text(path: Path) -> str:
    with opening(path):
        with path.open("rb") as opened:
            content = opened.read(LARGEST_STUBS_BYTES + 1)
        if len(content) > LARGEST_STUBS_BYTES:
            raise Mistake(f"{path} is larger than {LARGEST_STUBS_BYTES >> 20} MiB")
        return content.decode("utf-8-sig")


def _parse_json(text: str, source: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        what = "it is nested too deeply" if isinstance(error, RecursionError) else error
        raise Mistake(f"{source} is not JSON: {what}") from error


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number in JSON")


def _parse_yaml(text: str, source: str) -> Any:
    from pgflow.declare.text.yamlfile import YamlError, read_yaml

    try:
        return read_yaml(text).value
    except YamlError as error:
        place = f" (line {error.line})" if error.line is not None else ""
        raise Mistake(f"{source} is not YAML: {error}{place}") from error


def write_stubs(graph: Graph, path: Path) -> None:
    """Write made-up outputs of all nodes to a file that is not there yet.

    Raises:
        Mistake: It is there, or cannot be written, or none can be made up for a node.
    """
    from pgflow.declare.play.placeholders import NoPlaceholder, scaffold

    with mistaken(NoPlaceholder):
        stubs = scaffold(graph, _misfits())
    is_yaml = path.name.endswith((".yaml", ".yml"))
    text = _as_yaml(stubs) if is_yaml else f"{json.dumps(stubs, indent=2)}\n"
    if path.exists():
        raise Mistake(f"{path} is there already: it is not written over")
    with opening(path, "written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as opened:
            opened.write(text)
    note(f"Wrote {path}: {many(len(stubs), 'stub')}")


def _as_yaml(stubs: dict[str, Any]) -> str:
    """Return a line a node: names are quoted, and JSON is YAML."""
    lines = [f"{json.dumps(name)}: {json.dumps(value)}" for name, value in stubs.items()]
    return "".join(f"{line}\n" for line in lines) or "{}\n"


# For people ---------------------------------------------------------------------------------------

_STATES = {
    "stubbed": "green",
    "completed": "green",
    "skipped": "bright_black",
    "failed": "red",
    "paused": "magenta",
}


def _draw(played: DryRun) -> None:
    from rich.text import Text

    out = console()
    if played.trace:
        out.print(make_table(_COLUMNS, played.trace, out.width))
        out.print("")
    style = STYLES.get(played.outcome, "bold")
    out.print(Text.assemble("The run would end as ", (played.outcome, style)))
    if played.summary:
        line = Text.assemble("It would say: ", _cell(played.summary))
        out.print(line, overflow="ellipsis", no_wrap=True)
    for words, names in (
        ("no stub for", played.missing),
        ("made up: the output of", played.made_up),
        ("not asked so often:", played.unasked),
        ("unused stubs:", played.unused),
    ):
        if names:
            note(f"{words} {', '.join(map(shown, names))}")


def _cell(value: Any) -> Text:
    return plain("" if value is None else shown(str(value)[:2_000]))


def _state(entry: Entry) -> Text:
    from rich.text import Text

    return Text(entry.state, style=_STATES.get(entry.state, ""))


_COLUMNS = table(
    "NODE/36 MODE=type STATE OUTPUT/60@70 WHY*200",
    NODE=lambda entry: _cell(
        entry.id if entry.iteration is None else f"{entry.id} #{entry.iteration}"
    ),
    STATE=_state,
    OUTPUT=lambda entry: _cell(entry.output),
    WHY=lambda entry: _cell(entry.reason),
)
