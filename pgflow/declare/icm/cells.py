"""Cells and bullets of a contract: the paths in them, in back-ticks or plain, among the words
around them.

A cell may hold one path (`` `../01-script/output/` ``), several, a path and a remark (``(one per
session)``), or none at all (``(conversation)``). Paths may have placeholders (``[topic-slug]``,
``{slug}``, ``<run>``, ``{{NAME}}``) and asterisks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_LONGEST = 1_024  # what is longer names no file on any system
_CODE = re.compile(r"`([^`\n]+)`")
_BRACKETED = re.compile(r"\[[^\[\]]*\]|\{\{?[^{}]*\}?\}|<[^<>]*>")
_NAMED = re.compile(r"[^\s/]*[^\s/.]\.[A-Za-z][A-Za-z0-9]{0,7}")
_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://")
_ROOTED = re.compile(
    r"(?:\.{1,2}|~|[A-Za-z]:)?[/\\]|(?:stages|shared|references|output|skills|_[\w-]+)/"
)


@dataclass(frozen=True, slots=True)
class Pointer:
    """Target of a cell: a path, or (``is_path`` false) words that name no file."""

    location: str
    is_path: bool
    remark: str = ""


def pointers(text: str) -> list[Pointer]:
    """Everything that a cell points to.

    Args:
        text: The cell, or the bullet without its label.

    Returns:
        A pointer for each path, or one that holds the cell's words. The words around the first path
        are its remark.
    """
    codes = [found.strip() for found in _CODE.findall(text)]
    paths = [code for code in codes if is_path(code)]
    rest = _CODE.sub(lambda found: "" if is_path(found[1].strip()) else found[0], text)
    if not paths:
        paths = [bare for bare in map(_bare, text.split()) if _is_plain_path(bare)]
        known = frozenset(paths)
        rest = " ".join(word for word in text.split() if _bare(word) not in known)
    if not paths:
        return [Pointer(_unmarked(text), is_path=False)] if text.strip() else []
    remark = _tidy(rest)
    return [
        Pointer(path, is_path=True, remark=remark if number == 0 else "")
        for number, path in enumerate(paths)
    ]


def is_path(text: str) -> bool:
    """Return True if the text of a code span names a file or a folder."""
    if len(text) > _LONGEST:
        return False
    bare = _BRACKETED.sub("x", text)
    if not bare or re.search(r"\s", bare) or _SCHEME.match(bare):
        return False
    return "/" in bare or "\\" in bare or _NAMED.fullmatch(bare) is not None


def _is_plain_path(word: str) -> bool:
    """Return True if a word outside back-ticks is surely a path: ``and/or`` is not."""
    if not is_path(word):
        return False
    return bool(
        _ROOTED.match(word)
        or word.endswith("/")
        or _NAMED.fullmatch(_BRACKETED.sub("x", word).rsplit("/", 1)[-1])
    )


def _bare(word: str) -> str:
    """Return a word without the punctuation around it, but with the dots and brackets of a path."""
    word = word.rstrip(".,;:\"'").lstrip("\"'")
    return word[1:-1] if word.startswith("(") and word.endswith(")") else word


def _unmarked(text: str) -> str:
    """Return the cell without back-ticks around the whole of it."""
    found = _CODE.fullmatch(text.strip())
    return found[1].strip() if found else text.strip()


def _tidy(text: str) -> str:
    """Return the words left around the paths, without the punctuation that joined them."""
    return re.sub(r"^(?:[\s,;:+&]|-+\s|\u2013|\u2014)+|[\s,;:+&]+$", "", " ".join(text.split()))
