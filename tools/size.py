"""Print how large each room is, and the counts that the architecture is held to:
`python -m tools.size [FOLDER]`.

A line of code holds more than blanks, a comment or a docstring. With the folder of another checkout
you compare two commits.
"""

from __future__ import annotations

import argparse
import ast
import re
import tokenize
from collections import Counter
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parents[1]
LONG_LINES = 60
NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
POSITIONAL = re.compile(r"->>?\s*\d|\[\d+\]")
TWIN = "# Made by tools/colours.py"
PRIVATE = re.compile(r"^\s*(?:from|import) pgflow\.(?:\w+\.)*_\w", re.MULTILINE)


class Room(NamedTuple):
    """A folder of the product, or a module at its top."""

    name: str
    files: int
    code_lines: int


def docstring_lines(tree: ast.AST) -> set[int]:
    """Return the numbers of the lines that docstrings, and other strings by themselves, take."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def python_lines(path: Path) -> int:
    """Return the number of lines of code of a Python file."""
    text = path.read_text()
    with path.open("rb") as file:
        lines = {
            line
            for token in tokenize.tokenize(file.readline)
            if token.type not in NO_CODE
            for line in range(token.start[0], token.end[0] + 1)
        }
    return len(lines - docstring_lines(ast.parse(text)))


def sql_lines(path: Path) -> int:
    """Return the number of lines of code of a SQL file; comments on objects count as comments."""
    text = re.sub(
        r"^comment on [^;]*?\bis\s+'(?:[^']|'')*';", "", path.read_text(), flags=re.MULTILINE
    )
    lines = (line.strip() for line in text.splitlines())
    return sum(1 for line in lines if line and not line.startswith("--"))


def rooms(root: Path) -> list[Room]:
    """Return the rooms of a checkout, the largest first."""
    files: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    for top in ("pgflow", "cli/pgflow_cli", "sql"):
        for path in sorted((root / top).rglob("*.*")):
            if path.suffix in (".py", ".sql"):
                inside = path.relative_to(root / top)
                name = f"{top}/{inside.parts[0]}"
                files[name] += 1
                lines[name] += python_lines(path) if path.suffix == ".py" else sql_lines(path)
    return [Room(name, files[name], count) for name, count in lines.most_common()]


def counts(root: Path) -> dict[str, int]:
    """Return the counts that should fall."""
    python = {
        path: path.read_text()
        for top in ("pgflow", "cli")
        for path in sorted((root / top).rglob("*.py"))
    }
    cli = {path: text for path, text in python.items() if path.is_relative_to(root / "cli")}
    functions = [
        node
        for text in python.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    spans = [(node.end_lineno or node.lineno) - node.lineno + 1 for node in functions]
    codes = [
        span - len((ast.get_docstring(node, clean=False) or "").splitlines())
        for node, span in zip(functions, spans, strict=True)
    ]
    surface = (root / "pgflow/_surface.py").read_text()
    listed = re.search(r"__all__ = [\[(](.*?)[\])]", surface, re.DOTALL)
    return {
        "functions": len(functions),
        f"functions over {LONG_LINES} lines": sum(span > LONG_LINES for span in spans),
        "of them without their docstrings": sum(code > LONG_LINES for code in codes),
        "names in pgflow.__all__": len(re.findall(r'"\w+"', listed[1])) if listed else 0,
        "isinstance(call, ...) of the engine": sum(
            text.count("isinstance(call,")
            for path, text in python.items()
            if path.is_relative_to(root / "pgflow/_engine")
        ),
        "files of the command line that import private rooms": sum(
            bool(PRIVATE.search(text)) for text in cli.values()
        ),
        "positional reads of JSON in SQL": sum(
            len(POSITIONAL.findall(path.read_text())) for path in (root / "sql").rglob("*.sql")
        ),
        "of them outside the generated readers, and not of arrays": sum(
            len(re.findall(r"->>?\s*\d", path.read_text()))
            for path in (root / "sql").rglob("*.sql")
            if path.name != "protocol.sql"
        ),
        "lines of code of sync twins, which are generated": sum(
            python_lines(path) for path, text in python.items() if text.startswith(TWIN)
        ),
    }


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m tools.size", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=HERE, help="a checkout (this one)")
    root = parser.parse_args().folder
    found = rooms(root)
    for room in found:
        print(f"{room.code_lines:7,} {room.files:4} {room.name}")
    for kind in ("pgflow", "cli", "sql"):
        mine = [room for room in found if room.name.startswith(f"{kind}/")]
        print(f"{sum(r.code_lines for r in mine):7,} {sum(r.files for r in mine):4} all of {kind}")
    for name, count in counts(root).items():
        print(f"{count:7,}      {name}")


if __name__ == "__main__":
    main()
