"""Values that would do harm stand for every reference in the scripts of the corpus: `python -m
tests.injections [FOLDER ...]`.

Each mention of a value in a shell or a program of a workflow is one place. For each, the script is
rewritten as a run rewrites it, and the value of that place is a text full of quotes, commands and
line feeds. Three things are looked at:

- what the place evaluates to is what it evaluates to with a plain word, with that word replaced:
  so the value has arrived byte for byte;
- the whole script is played, its branches both ways, and the value has run nothing;
- where bash evaluates a value, only a number is let in, so a text is refused.

Nothing of the scripts reaches this machine: bash finds no program, and each command is written down
instead. Of programs only the literals are evaluated.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from pgflow.declare.dag import discover, read_file
from pgflow.declare.durable import programs, shell
from pgflow.declare.durable.shell import rewrite
from pgflow.declare.graph import Bash, Group, Loop, Node, Script, every_node
from pgflow.declare.text.bash import parser as shell_parser
from pgflow.declare.text.templates import program_references

CORPUS = Path(__file__).parent / "corpus" / "dag"
MARK = "/tmp/no-such-folder/injected"
"""Word of an injected command; it need not be writable, since commands are written down."""
HARM = f"'\"$(touch {MARK})`touch {MARK}`;touch {MARK}\n\\ ${{HOME}} $HOME * ~ é\U0001f600\n)}}]] "
SECONDS = 5.0

PRELUDE = r"""
shopt -u expand_aliases
command_not_found_handle() {
  printf '%s\0' "$@" >&9
  local said; IFS= read -r -d '' -t 1 said; printf '%s\0' "$said" >&9
  return "$ENDS_WITH"
}
test() { printf '%s\0' "$@" >&9; builtin test "$@"; }
echo() { printf '%s\0' "$@" >&9; builtin echo "$@"; }
"""
_PARTS_OF_WORDS = frozenset(
    {
        "simple_expansion", "expansion", "string", "raw_string", "ansi_c_string",
        "translated_string", "concatenation", "variable_name",
    }
)  # fmt: skip


class Source(NamedTuple):
    """A script of a workflow, each of whose references has a name of its own."""

    file: str
    language: str
    text: str
    places: int


class Found(NamedTuple):
    """Findings on one script: places by kind, and what is wrong."""

    places: Counter[str]
    wrong: list[str]


def sources(*folders: Path) -> Iterator[Source]:
    """Every shell and program with references, each text once."""
    seen = set()
    for folder in folders:
        for file, node in nodes(folder):
            for language, text in scripts(node):
                found = [*program_references(text)]
                if found and (language, text) not in seen:
                    seen.add((language, text))
                    yield Source(file, language, named_apart(text, found), len(found))


def nodes(folder: Path) -> Iterator[tuple[str, Node]]:
    """Every node of the workflows in a folder, whether their repository's layout is there or not."""
    files = {verdict.file: verdict for verdict in discover(folder)}
    for path in sorted(folder.rglob("*.yaml")):
        verdict = files.get(str(path)) or read_file(path)
        for node in every_node(verdict.graph.nodes) if verdict.graph is not None else ():
            yield os.path.relpath(path, folder), node


def scripts(node: Node) -> Iterator[tuple[str, str]]:
    """The scripts of a node, each with its language."""
    match node.body:
        case Bash(script=text):
            yield "bash", text
        case Script(script=text, runtime=runtime, inline=True):
            yield {"bun": "javascript", "uv": "python"}[runtime], text
        case Loop() | Group() if node.body.until.bash is not None:
            yield "bash", node.body.until.bash


def named_apart(text: str, found: list[tuple[int, int]]) -> str:
    """A script whose references name a node each, so that one place can have a value of its own.

    An escaped dollar stays escaped, since nothing before it changes.
    """
    parts, end = [], 0
    for number, (start, last) in enumerate(found):
        parts += [text[end:start], f"$place{number}.output"]
        end = last
    return "".join([*parts, text[end:]])


def harm(number: int) -> str:
    """The value of a place."""
    return f"{HARM}{number}."


def plain(number: int) -> str:
    """A word in its stead."""
    return f"plain{number}x"


def replaced(said: bytes) -> bytes:
    """Words of a script on plain values, as they are on harmful ones."""
    return re.sub(rb"plain(\d+)x", lambda found: harm(int(found[1])).encode(), said)


# Shells -------------------------------------------------------------------------------------------


def judge_shell(source: Source) -> Found:
    """Judge the places of a shell."""
    made = rewrite(source.text)
    kinds = Counter[str]()
    wrong: list[str] = []
    slots = {int(re.sub(r"\D", "", slot.reference)): slot for slot in made.slots}
    root = shell_parser().parse(made.text.encode()).root_node
    for number, kind in enumerate(kinds_of(source.text)):
        slot = slots.get(number)
        if slot is None:
            kinds["in a comment, or escaped"] += 1
        elif slot.is_number:
            kinds["where bash evaluates"] += 1
        else:
            kinds[kind] += 1
            script = place(root, made.text, slot.name)
            wrong += compare(source, made.slots, script, kind, number)
    for ends_with in ("0", "1"):
        values = {slot.name: value_of(slot, harm) for slot in made.slots}
        if ran(play(PRELUDE + made.text, values, ends_with)):
            wrong.append(f"{source.file}: a value has run, where commands end with {ends_with}")
    return Found(kinds, wrong)


def value_of(slot: shell.Slot, make: Any) -> str:
    """The value of a slot: a number where bash evaluates it, since nothing else is let in."""
    return "7" if slot.is_number else str(make(int(re.sub(r"\D", "", slot.reference))))


def kinds_of(text: str) -> Iterator[str]:
    """The kind of each place, as its author wrote it."""
    masked = bytearray(text.encode())
    starts = []
    for first, last in program_references(text):
        start, end = (len(text[:one].encode()) for one in (first, last))
        masked[start + 1 : end] = b"v" * (end - start - 1)
        starts.append(start)
    root = shell_parser().parse(bytes(masked)).root_node
    for start in starts:
        yield next(
            (name for one in upwards(root, start) if (name := kind_of(one))), "outside quotes"
        )


def kind_of(node: Any) -> str:
    """The kind of the places in a part of a script; empty if what is around it says so."""
    if node.type == "heredoc_redirect":
        is_quoted = any(
            child.type == "heredoc_start" and re.search(rb"['\"\\]", child.text)
            for child in node.children
        )
        return "in a quoted heredoc" if is_quoted else "in a heredoc"
    quoted = {"string": "double", "raw_string": "single", "ansi_c_string": "single"}
    if node.type in quoted:
        return f"in {quoted[node.type]} quotes"
    return "outside quotes" if node.type == "command_substitution" else ""


def upwards(root: Any, start: int) -> list[Any]:
    """Parts of a script around a place, the innermost first."""
    around = [root.descendant_for_byte_range(start, start + 1)]
    while around[-1].parent is not None:
        around.append(around[-1].parent)
    return around


def place(root: Any, text: str, name: str) -> str:
    """A script that says what a place evaluates to."""
    around = upwards(root, text.encode().index(f"${{{name}}}".encode()))
    if any(one.type == "heredoc_body" for one in around) and not in_words(around):
        whole = next(one for one in around if one.type == "redirected_statement")
        return PRELUDE + str(whole.text.decode())
    word = around[0]
    for one in around[1:]:
        if one.type not in _PARTS_OF_WORDS:
            break
        word = one
    return f"{PRELUDE}printf '%s\\0' {word.text.decode()} >&9"


def in_words(around: list[Any]) -> bool:
    """Return True if a place within a heredoc is in a command of it."""
    kinds = [one.type for one in around]
    return "command_substitution" in kinds[: kinds.index("heredoc_body")]


def compare(
    source: Source, slots: tuple[shell.Slot, ...], script: str, kind: str, number: int
) -> list[str]:
    """Flaws of the value that a place evaluates to."""
    expected = play(script, {slot.name: value_of(slot, plain) for slot in slots}, "0")
    said = play(script, {slot.name: value_of(slot, harm) for slot in slots}, "0")
    where = f"{source.file}: place {number}, {kind}"
    if plain(number).encode() not in expected:
        return [f"{where}, says nothing of its value: {expected[:200]!r}"]
    if said != replaced(expected):
        return [f"{where}: {said[:300]!r} is not {replaced(expected)[:300]!r}"]
    return []


def ran(said: bytes) -> bool:
    """Return True if a command of a value was run."""
    return f"touch\0{MARK}".encode() in said


def play(script: str, values: dict[str, str], ends_with: str) -> bytes:
    """Return the words of a script to descriptor 9, in a folder of its own, where there are no programs."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "said")
        environment = {"PATH": "/nonexistent", "HOME": folder, "ENDS_WITH": ends_with, **values}
        bash = shutil.which("bash")
        assert bash is not None
        command = [bash, "--norc", "-c", f"exec 9>>{log}\n{script}"]
        work = Path(folder, "work")
        work.mkdir()
        try:
            subprocess.run(
                command,
                env=environment,
                cwd=work,
                capture_output=True,
                check=False,
                stdin=subprocess.DEVNULL,
                timeout=SECONDS,
            )
        except subprocess.TimeoutExpired:
            pass  # a loop that waits for a program: what it has said until then counts
        return log.read_bytes() if log.exists() else b""


# Programs -----------------------------------------------------------------------------------------


def judge_program(source: Source) -> Found:
    """Judge the places of a program: each literal is evaluated alone."""
    language: Any = source.language
    made = programs.prepare(source.text, language)
    kinds = Counter({"in a comment, or escaped": source.places - len(made.holes)})
    wrong = []
    for hole in made.holes:
        number = int(re.sub(r"\D", "", hole.reference))
        kind = f"{language}: {'an expression' if hole.place == 'expression' else 'in a string'}"
        kinds[kind] += 1
        said = evaluate(literal(source.text, hole, language, harm(number)), language)
        if said != harm(number):
            wrong.append(f"{source.file}: {kind} {number} is {said[:300]!r}")
    return Found(+kinds, wrong)


def literal(text: str, hole: programs.Hole, language: Any, value: str) -> str:
    """The literal around a hole, as a run writes it, without the rest of its string."""
    quotes = quotes_of(text, hole.reference, language) if hole.place == "text" else ("", "")
    alone = programs.prepare(f"{quotes[0]}{hole.reference}{quotes[1]}", language)
    assert [one.place for one in alone.holes] == [hole.place]
    assert [(one.opened, one.closed) for one in alone.holes] == [(hole.opened, hole.closed)]
    return programs.fill(alone, lambda _: value)


def quotes_of(text: str, reference: str, language: Any) -> tuple[str, str]:
    """Marks that open and close the string around a reference."""
    start = len(text[: text.index(reference)].encode())
    masked = text.encode().replace(reference.encode(), b"v" * len(reference.encode()))
    node = (
        programs._parser(language)
        .parse(masked)
        .root_node.descendant_for_byte_range(start, start + 1)
    )
    while node.type not in ("string", "template_string"):
        node = node.parent
    return node.children[0].text.decode(), node.children[-1].text.decode()


def evaluate(text: str, language: str) -> str:
    """The value of a literal, and nothing else."""
    if language == "python":
        import ast

        if not re.match(r"[rbuRBU]*[fF]", text):
            return str(ast.literal_eval(text))
        parts = ast.parse(text, mode="eval").body
        assert isinstance(parts, ast.JoinedStr)
        assert all(isinstance(part, ast.Constant) for part in parts.values)
        return "".join(str(part.value) for part in parts.values if isinstance(part, ast.Constant))
    done = subprocess.run(
        ["node", "-e", f"process.stdout.write(JSON.stringify({text}))"],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    return str(json.loads(done.stdout))


def judge(source: Source) -> Found:
    """Judge the places of a script."""
    return judge_shell(source) if source.language == "bash" else judge_program(source)


def main() -> int:
    """Judges all, and prints the figures."""
    folders = [Path(name) for name in sys.argv[1:]] or [CORPUS]
    found = [*sources(*folders)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        judged = [*pool.map(judge, found)]
    kinds = sum((one.places for one in judged), Counter[str]())
    wrong = [line for one in judged for line in one.wrong]
    figures = {"scripts": len(found), "places": kinds.total(), "kinds": kinds, "wrong": len(wrong)}
    print(json.dumps(figures, indent=2))
    for line in wrong[:40]:
        print(f"FAILED {line}")
    return 1 if wrong or not found else 0


if __name__ == "__main__":
    sys.exit(main())
