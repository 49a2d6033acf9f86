"""Changes of SQL: operators that read the tokens of each function's and view's body.

Left out is what no test on one session can see: the order of statements, and which clock is read.
A body is judged by its words and parentheses alone, whatever its language: a condition ends where
its depth ends or a word comes that no condition contains. A change that Postgres refuses is counted
apart, so a rule may be plain. Comments, grants and the heads of functions are left out.
"""

from __future__ import annotations

import re
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

Spliced = tuple[tuple[int, int, str], ...]

TOKEN = re.compile(
    r"(?P<space>\s+|--[^\n]*|/\*.*?\*/)|(?P<text>'(?:[^']|'')*')|(?P<quoted>\"[^\"]*\")"
    r"|(?P<number>\d+(?:\.\d+)?)|(?P<word>[A-Za-z_][\w$]*)|(?P<sign>:=|=>|::|->>|->|<>|!=|<=|>=|@>|<@|\|\||.)",
    re.DOTALL,
)
HEAD = re.compile(r"create (?:or replace )?(function|view|procedure) pgflow\.(\w+)")
BODY = re.compile(r"\bas (\$\w*\$)|^return\b", re.MULTILINE)
ENDS = frozenset([
    "and", "or", "then", "loop", "order", "group", "limit", "offset", "for", "returning",
    "union", "except", "intersect", "when", "else", "end", "where", "having", "window", "left",
    "right", "full", "inner", "cross", "join", "on", "using", "into", "do", "from",
])  # fmt: skip
ORDER_ENDS = ENDS - {"and", "or", "else", "end", "then", "when"}
STARTS = ("where", "on", "and", "or", "having")
BEFORE = frozenset(["", "begin", "then", "else", "loop", ";"])
ACTS = frozenset(["perform", "insert", "update", "delete", "raise", "call", "return", "lock"])
BOUNDARIES = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
SIGNS = {"+": "-", "-": "+"}
WORDS = {"greatest": "least", "least": "greatest", "min": "max", "max": "min", "any": "all",
         "all": "any", "bool_or": "bool_and", "bool_and": "bool_or"}  # fmt: skip
SMALL = 10
IDENTIFIER = re.compile(r"'[\w.:%|-]{1,24}'")


class Token(NamedTuple):
    """A word, sign or literal, and its place."""

    kind: str
    text: str
    start: int
    end: int


class Body:
    """The tokens of one body, and the changes that they allow."""

    def __init__(self, name: str, tokens: list[Token]) -> None:
        self.name = name
        self._tokens = tokens
        self._depths: list[int] = []
        depth = 0
        for token in tokens:
            depth -= token.text in ")]"
            self._depths.append(depth)
            depth += token.text in "(["

    def changes(self) -> Iterator[tuple[str, Spliced]]:
        """Operator and new text of each place."""
        for at, token in enumerate(self._tokens):
            yield from self._conditions(at, token)
            yield from self._clauses(at, token)
            yield from self._small(at, token)
        yield from self._statements()

    def _word(self, at: int, *words: str) -> bool:
        return all(
            0 <= at + n < len(self._tokens) and self._tokens[at + n].text.lower() == word
            for n, word in enumerate(words)
        )

    def _until(self, at: int, ends: frozenset[str]) -> int:
        """Index behind the last token from `at` on, of its depth, before one of these words."""
        depth, cases = self._depths[at], 0
        is_between = False
        for n in range(at, len(self._tokens)):
            text = self._tokens[n].text.lower()
            if self._depths[n] < depth or text == ";":
                return n
            if self._depths[n] > depth:
                continue
            if text == "case":
                cases += 1
            elif cases:
                cases -= text == "end"
            elif text == "between":
                is_between = True
            elif text == "and" and is_between:
                is_between = False
            elif text == "from" and self._word(n - 1, "distinct"):
                continue
            elif (text in ends and n > at) or text == ",":
                return n
        return len(self._tokens)

    def _replace(self, first: int, behind: int, text: str) -> Spliced:
        return ((self._tokens[first].start, self._tokens[behind - 1].end, text),)

    def _drop(self, first: int, behind: int) -> Spliced:
        return self._replace(first, behind, "")

    def _conditions(self, at: int, token: Token) -> Iterator[tuple[str, Spliced]]:
        word = token.text.lower()
        if word in STARTS and at + 1 < len(self._tokens):
            if self._word(at - 1, "conflict", "on") or self._word(at + 1, "conflict"):
                return
            if word == "and" and self._follows_between(at):
                return
            behind = self._until(at + 1, ENDS)
            is_or = word == "or" or behind < len(self._tokens) and self._word(behind, "or")
            if behind > at + 1:
                new = "false" if is_or else "true"
                yield "term dropped", self._replace(at + 1, behind, new)
        elif word in {"if", "elsif", "while", "when"} and not self._word(at - 1, "end"):
            if self._word(at, "if", "exists") or self._word(at, "when", "others"):
                return
            behind = self._until(at + 1, frozenset(["then", "loop"]))
            is_exception = word == "when" and self._depths[at] == 0 and self._is_handler(at)
            if behind == at + 1 or behind >= len(self._tokens) or self._word(behind, ","):
                return
            if is_exception:
                return
            if word != "while":
                yield "condition true", self._replace(at + 1, behind, "true")
            yield "condition false", self._replace(at + 1, behind, "false")
            yield from self._first_term(at + 1, behind)

    def _first_term(self, first: int, behind: int) -> Iterator[tuple[str, Spliced]]:
        end = self._until(first, ENDS)
        if end < behind and self._tokens[end].text.lower() in {"and", "or"}:
            new = "false" if self._word(end, "or") else "true"
            yield "term dropped", self._replace(first, end, new)

    def _is_handler(self, at: int) -> bool:
        """Return True in the branches of an exception clause."""
        for n in range(at - 1, -1, -1):
            text = self._tokens[n].text.lower()
            if text == "exception" and self._tokens[n - 1].text == ";":
                return True
            if text in {"case", "begin"}:
                return False
        return False

    def _follows_between(self, at: int) -> bool:
        for n in range(at - 1, -1, -1):
            if self._depths[n] < self._depths[at]:
                return False
            if self._depths[n] == self._depths[at]:
                text = self._tokens[n].text.lower()
                if text == "between":
                    return True
                if text in ENDS:
                    return False
        return False

    def _clauses(self, at: int, token: Token) -> Iterator[tuple[str, Spliced]]:
        word = token.text.lower()
        if word == "for" and any(
            self._word(at + 1, *kind)
            for kind in (("update",), ("share",), ("no", "key"), ("key", "share"))
        ):
            yield "lock dropped", self._drop(at, self._until(at + 1, frozenset()))
        elif self._word(at, "skip", "locked") or self._word(at, "on", "conflict", "do", "nothing"):
            name = "skip locked dropped" if word == "skip" else "on conflict dropped"
            yield name, self._drop(at, at + (2 if word == "skip" else 4))
        elif self._word(at, "order", "by") and not self._is_sorted_anyway(at):
            yield "order dropped", self._drop(at, self._behind_order(at))
        elif word == "limit":
            yield "limit dropped", self._drop(at, self._until(at + 1, ENDS))
        elif word == "distinct" and not self._word(at - 1, "is") and not self._word(at + 1, "from"):
            if not self._word(at - 1, "not") and not self._word(at + 1, "on"):
                yield "distinct dropped", self._drop(at, at + 1)
        elif self._word(at, "left", "join"):
            yield "join narrowed", self._drop(at, at + 1)

    def _is_sorted_anyway(self, at: int) -> bool:
        """Return True behind `distinct`, which sorts."""
        for n in range(at - 1, -1, -1):
            if self._depths[n] < self._depths[at]:
                return False
            if self._depths[n] == self._depths[at] and self._word(n, "distinct"):
                return True
        return False

    def _behind_order(self, at: int) -> int:
        for n in range(at + 2, len(self._tokens)):
            text = self._tokens[n].text.lower()
            is_end = text in ORDER_ENDS or text == ";"
            if self._depths[n] < self._depths[at] or is_end and self._depths[n] == self._depths[at]:
                return n
        return len(self._tokens)

    def _small(self, at: int, token: Token) -> Iterator[tuple[str, Spliced]]:
        word = token.text.lower()
        if word == "not" and not self._word(at - 1, "on"):
            yield "not dropped", self._drop(at, at + 1)
        elif (
            self._word(at, "is", "distinct", "from")
            or word == "is"
            and self._tokens[at + 1].text.lower() in {"null", "true"}
        ):
            yield "comparison negated", self._replace(at, at + 1, "is not")
        elif token.text == "<>":
            yield "comparison negated", self._replace(at, at + 1, "=")
        elif token.text in BOUNDARIES:
            yield "boundary", self._replace(at, at + 1, BOUNDARIES[token.text])
        elif token.text in SIGNS and self._tokens[at - 1].kind in {"word", "number"}:
            yield "arithmetic", self._replace(at, at + 1, SIGNS[token.text])
        elif word in WORDS and self._word(at + 1, "(") and not self._word(at - 1, "."):
            yield "call exchanged", self._replace(at, at + 1, WORDS[word])
        elif word == "coalesce" and self._word(at + 1, "("):
            first = self._until(at + 2, frozenset())
            end = next(
                n for n in range(at + 2, len(self._tokens) + 1)
                if n == len(self._tokens) or self._depths[n] < self._depths[at + 2]
            )  # fmt: skip
            yield "coalesce dropped", self._replace(first, end, "")
        elif token.text.isdigit() and not self._word(at - 1, "offset"):
            yield (
                "constant",
                self._replace(at, at + 1, str(int(word) + 1 if int(word) < SMALL else 1)),
            )
        elif token.kind == "text" and IDENTIFIER.fullmatch(token.text) and not self._is_shown(at):
            yield "constant", self._replace(at, at + 1, f"{token.text[:-1]}x'")
        elif word in {"true", "false"}:
            yield "constant", self._replace(at, at + 1, "false" if word == "true" else "true")

    def _is_shown(self, at: int) -> bool:
        """Return True for the message of an error."""
        return self._word(at - 1, "=") and self._tokens[at - 2].text.lower() in {
            "message",
            "hint",
            "detail",
        }

    # Statements of plpgsql

    def _statements(self) -> Iterator[tuple[str, Spliced]]:
        is_program = any(token.text.lower() == "begin" for token in self._tokens)
        is_inside = not is_program
        for at, token in enumerate(self._tokens):
            is_inside = is_inside or token.text.lower() == "begin"
            if not is_inside and token.text == ":=":
                yield "value dropped", self._drop(at, self._until(at, frozenset()))
            if not is_inside or self._depths[at] or self._before(at) not in BEFORE:
                continue
            ends = (n for n in range(at, len(self._tokens)) if self._tokens[n].text == ";")
            end = next(ends, len(self._tokens))
            if not self._acts(at, end):
                continue
            if is_program:
                yield "statement dropped", self._replace(at, end, "null")

    def _before(self, at: int) -> str:
        return self._tokens[at - 1].text.lower() if at else ""

    def _acts(self, at: int, end: int) -> bool:
        words = {t.text.lower() for t in self._tokens[at:end]}
        first = self._tokens[at].text.lower()
        return (
            first in ACTS
            or first in {"select", "with"}
            and "into" in words
            or first != "begin"
            and any(self._tokens[n].text == ":=" for n in range(at + 1, min(at + 4, end)))
        )


def tokens_of(text: str, start: int, end: int) -> list[Token]:
    """Return the tokens between two places, without space and comments."""
    return [
        Token(str(found.lastgroup), found.group(), found.start(), found.end())
        for found in TOKEN.finditer(text, start, end)
        if found.lastgroup != "space"
    ]


def bodies(text: str) -> Iterator[Body]:
    """The bodies of the functions and views of a file."""
    heads = [*HEAD.finditer(text)]
    for head, behind in zip_longest(heads, (found.start() for found in heads[1:])):
        opening = BODY.search(text, head.end(), behind or len(text))
        if head[1] == "view":
            start, end = head.end(), text.find(";", head.end())
        elif opening is None:
            continue
        elif opening[1]:
            start, end = opening.end(), text.index(opening[1], opening.end())
        else:
            start, end = opening.end(), text.index(";", opening.end())
        yield Body(head[2], tokens_of(text, start, end))


def statement_of(text: str, name: str) -> str:
    """Return the statement that replaces a function or view."""
    head = next(found for found in HEAD.finditer(text) if found[2] == name)
    opening = BODY.search(text, head.end())
    end = head.end()
    if head[1] != "view" and opening is not None:
        end = text.index(opening[1], opening.end()) if opening[1] else opening.end()
    replaced = text[head.end() : text.index(";", end) + 1]
    return f"create or replace {head[1]} pgflow.{name}{replaced}"


def of_query(text: str) -> Iterator[tuple[str, Spliced]]:
    """Operator and new text of each place of a query that stands in Python."""
    yield from Body("", tokens_of(text, 0, len(text))).changes()


def find(text: str) -> Iterator[tuple[str, str, Spliced]]:
    """Function, operator and new text of each place of a file."""
    for body in bodies(text):
        for operator, splices in body.changes():
            yield body.name, operator, splices
