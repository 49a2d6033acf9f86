"""Prose is plain. README and docs have short sentences about things, with one thought each: the
figures are those that Oban's and psycopg's guides keep. Docstrings, the entries in them and SQL
comments begin with a verb or a noun.
"""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Callable, Iterable, Iterator
from functools import cache

import servers

WHAT_PER_100 = 5
SEMICOLONS_PER_100 = 8
MEDIAN_WORDS = 17
ARCHITECTURE_LINES = 250

GENERATED = {
    "python.md", "inspect.md", "sql.md", "errors.md", "checks.md", "GUARANTEES.md",
}  # fmt: skip
"""Names of pages made from docstrings, comments and the record of the proof."""

QUESTION_WORDS = {
    "what", "whether", "how", "where", "which", "who", "whose", "whoever", "when", "why",
}  # fmt: skip
"""A docstring or comment that begins with one of these names a question instead of an answer:
"Return True if", "Seconds until".
"""

STILTED = re.compile(
    r"\b(?:whoever|nobody|somebody)\b"
    r"|(?<!there )\b(?:is|are|was|were) no (?!longer\b|more\b|such\b|other\b|less\b|faster\b)\w+",
    re.IGNORECASE,
)
"""Words that a native engineer writes otherwise: "any user", "is not a request"."""

CODE = ("pgflow", "cli", "bench", "examples", "tools", "tests/kits")

PAGES = [
    *(
        servers.REPOSITORY / name
        for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "bench/TIME.md")
    ),
    *sorted(
        page for page in (servers.REPOSITORY / "docs").rglob("*.md") if page.name not in GENERATED
    ),
]


def sentences(markdown: str) -> list[str]:
    """The sentences of a page: no code, no headings, no tables."""
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.DOTALL | re.MULTILINE)
    found = []
    for block in re.split(r"\n\s*\n|\n(?=[-*] |\d+\. |\|)", text):
        prose = re.sub(r"^([-*]|\d+\.) ", "", block.strip())
        if not prose or prose.startswith(("#", "|", "<", ">")):
            continue
        prose = re.sub(r"`[^`]*`", "x", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose)).replace(
            "**", ""
        )
        found += [
            s for s in re.split(r"(?<=[.!?:])\s+(?=[A-Zx])", prose.replace("\n", " ")) if " " in s
        ]
    return found


def complaints(said: list[str]) -> list[str]:
    """Return a complaint for each of the three bounds that these sentences exceed; a short page may
    have one of the first two each.
    """
    found = []
    for name, pattern, bound in (
        ("what", r"\bwhat\b", WHAT_PER_100),
        ("semicolons", ";", SEMICOLONS_PER_100),
    ):
        having = [s for s in said if re.search(pattern, s, re.IGNORECASE)]
        if sum(len(re.findall(pattern, s, re.IGNORECASE)) for s in said) > max(
            1, bound * len(said) / 100
        ):
            found.append(f"more than {bound} {name} in 100 sentences: {having}")
    if said and statistics.median(len(s.split()) for s in said) > MEDIAN_WORDS:
        found.append(f"half of the sentences have more than {MEDIAN_WORDS} words")
    return found


def test_pages_are_plain_and_the_architecture_is_a_tour():
    found = {
        page.relative_to(servers.REPOSITORY).as_posix(): complaints(sentences(page.read_text()))
        for page in PAGES
    }
    assert {page: said for page, said in found.items() if said} == {}
    lines = (servers.REPOSITORY / "ARCHITECTURE.md").read_text().splitlines()
    assert len(lines) <= ARCHITECTURE_LINES, "leave depth to the files that it names"


def test_wordy_pages_are_found():
    page = "# What\n\n```python\nwhat; what\n```\n\n" + "It says what it does; what for. " * 3
    assert [c.split(" in ")[0] for c in complaints(sentences(page))] == [
        "more than 5 what",
        "more than 8 semicolons",
    ]
    assert complaints(["word " * 30]) == ["half of the sentences have more than 17 words"]
    assert complaints(sentences("- Start it.\n- Stop it; what now?\n")) == []


@cache
def docstrings(source: str) -> tuple[tuple[int, str], ...]:
    """Return line and text of each docstring, those behind assignments included."""
    return tuple(_docstrings(source))


def _docstrings(source: str) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for before, statement in (
            zip([None, *body], body, strict=False) if isinstance(body, list) else ()
        ):
            if before is None and not isinstance(
                node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            ):
                continue
            if before is not None and not isinstance(before, (ast.Assign, ast.AnnAssign)):
                continue
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
            ):
                yield statement.lineno, statement.value.value


def entries(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each argument, attribute and error that a docstring describes."""
    for line, docstring in docstrings(source):
        for found in re.finditer(r"^ +\*{0,2}[A-Za-z_]+: (.+)$", docstring, re.MULTILINE):
            yield line + docstring.count("\n", 0, found.start(1)), found[1]


def sql_comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each ``comment on``, and of the comment at the head of the file."""
    if source.startswith("--"):
        yield 1, source.removeprefix("--")
    for found in re.finditer(r"^comment on [^']*? is\s+'((?:[^']|'')+)'", source, re.MULTILINE):
        yield source.count("\n", 0, found.start(1)) + 1, found[1]


def asks(text: str) -> bool:
    """Return True if a text begins with a question word, in whichever case."""
    first = re.match(r"\W*([A-Za-z]+)", text)
    return first is not None and first[1].lower() in QUESTION_WORDS


def questions(folder: str) -> list[str]:
    """Return ``file:line: text`` of each docstring or SQL comment of a folder that begins with a
    question word.
    """
    found = []
    for pattern, texts in (("*.py", docstrings), ("*.py", entries), ("*.sql", sql_comments)):
        for path in sorted((servers.REPOSITORY / folder).rglob(pattern)):
            name = path.relative_to(servers.REPOSITORY).as_posix()
            found += [
                f"{name}:{line}: {text.strip().splitlines()[0]}"
                for line, text in texts(path.read_text())
                if asks(text)
            ]
    return found


def test_docstrings_and_comments_begin_with_a_verb_or_a_noun():
    found = [line for folder in (*CODE, "sql") for line in questions(folder)]
    assert not found, "say what is returned or held instead of asking:\n" + "\n".join(found)


def stilted(source: str, texts: Callable[[str], Iterable[tuple[int, str]]]) -> list[str]:
    """Return ``line: words`` of each phrase of a source that reads stilted."""
    return [
        f"{line}: {found[0]}"
        for line, text in texts(source)
        for found in STILTED.finditer(" ".join(text.split()))
    ]


def test_pages_docstrings_and_comments_use_plain_words():
    def of_page(page: str) -> list[tuple[int, str]]:
        return [(0, sentence) for sentence in sentences(page)]

    def of_objects(sql: str) -> list[tuple[int, str]]:
        return [(line, text) for line, text in sql_comments(sql) if line > 1]

    places = [(page, of_page) for page in PAGES]
    for folder in ("pgflow", "cli"):
        places += [(path, docstrings) for path in (servers.REPOSITORY / folder).rglob("*.py")]
    places += [(path, of_objects) for path in (servers.REPOSITORY / "sql").rglob("*.sql")]
    found = [
        f"{path.relative_to(servers.REPOSITORY)}:{phrase}"
        for path, texts in places
        for phrase in stilted(path.read_text(), texts)
    ]
    assert not found, "say it with plain words:\n" + "\n".join(found)


def test_stilted_words_are_found():
    source = (
        '"""Whoever asks.\n\nIt is no\nrequest, there is no reason, and it is no longer open."""\n'
    )
    assert stilted(source, docstrings) == ["1: Whoever", "1: is no request"]


def test_docstrings_that_ask_are_found():
    source = '''"""The module."""\n\nLIMIT = 3\n"""How many."""\n\ndef is_open():\n    """Whether it is.\n\n    More.\n    """\n    x = 1\n    "Whose."\n'''
    assert [(line, text.split()[0]) for line, text in docstrings(source)] == [
        (1, "The"),
        (4, "How"),
        (7, "Whether"),
        (12, "Whose."),
    ]
    assert [line for line, text in docstrings(source) if asks(text)] == [4, 7, 12]
    asking = 'def f(a, b):\n    """Return it.\n\n    Args:\n        a: Number of them.\n        b: Whether it is.\n    """\n'
    assert [(line, text) for line, text in entries(asking) if asks(text)] == [(6, "Whether it is.")]
    assert [
        line
        for line, text in sql_comments("-- Runs.\n\ncomment on column a.b is 'When it''s due';\n")
        if asks(text)
    ] == [3]
