"""Items of a store as documents: what its operations ask for, without a database."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.store.base import (
    GetOp,
    IndexConfig,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    SearchItem,
    SearchOp,
    get_text_at_path,
    tokenize_path,
)

from pgflow.documents import Document, Put

ITEMS = "langgraph.item"
VECTORS = "langgraph.vector"
"""Vectors of items, under the same paths."""
Path = tuple[str, ...]
Vector = Sequence[float]

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


def checked(ops: Iterable[Op]) -> list[Op]:
    """Return operations whose namespaces are valid, before any of them is done.

    Raises:
        InvalidNamespaceError: A label is not a string, is empty, or has a period or a NUL.
    """
    every = list(ops)
    for path in (path for op in every for path in _paths(op)):
        for label in path:
            if not isinstance(label, str) or not label or "." in label or "\0" in label:
                raise InvalidNamespaceError(
                    f"label {label!r} of namespace {path!r} must be a text without periods and NUL"
                )
    return every


def _paths(op: Op) -> Iterable[Any]:
    if isinstance(op, ListNamespacesOp):
        return [condition.path for condition in op.match_conditions or ()]
    return [op.namespace if isinstance(op, GetOp | PutOp) else op.namespace_prefix]


def split(ops: Iterable[PutOp]) -> tuple[list[Put], list[Path]]:
    """Return the items to be written and those to be deleted. Of several with one key the last
    counts.
    """
    last = {(*op.namespace, op.key): op for op in ops}
    puts = [
        Put(ITEMS, path, op.value, None if op.ttl is None else op.ttl * 60)
        for path, op in last.items()
        if op.value is not None
    ]
    return puts, [path for path, op in last.items() if op.value is None]


@dataclass(frozen=True)
class Index:
    """A search by meaning.

    Attributes:
        config: Configuration, with the fields of items to embed.
        embed_texts: Function that embeds texts of items, in the colour of its store.
        embed_query: Function that embeds the text of a search.
    """

    config: IndexConfig
    embed_texts: Callable[[list[str]], Any]
    embed_query: Callable[[str], Any]

    def texts_of(self, op: PutOp) -> list[str]:
        """Return the texts of an item that are embedded."""
        if op.value is None or op.index is False:
            return []
        fields = self.config.get("fields") or ["$"] if op.index is None else op.index
        return [
            text
            for field in fields
            for text in get_text_at_path(op.value, field if field == "$" else tokenize_path(field))
        ]


def vector_puts(puts: Iterable[Put], texts: Mapping[Path, list[str]], found: Any) -> list[Put]:
    """Return the documents with the vectors of items, given these in the order of their texts."""
    left = iter(found)
    vectors = {path: [next(left) for _ in several] for path, several in texts.items()}
    return [Put(VECTORS, put.path, vectors[put.path], put.ttl) for put in puts if put.path in texts]


def by_meaning(
    documents: Iterable[Document], vectors: Mapping[Path, Document], wanted: Vector
) -> list[SearchItem]:
    """Return items with their scores, the most similar first; those without vectors are last."""
    found = [
        search_item_of(
            document,
            max((_cosine(wanted, one) for one in vectors[document.path].value), default=None)
            if document.path in vectors
            else None,
        )
        for document in documents
    ]
    return sorted(found, key=lambda item: math.inf if item.score is None else -item.score)


def _cosine(one: Vector, other: Vector) -> float:
    length = math.hypot(*one) * math.hypot(*other)
    return sum(map(operator.mul, one, other)) / length if length else 0.0


def item_of(document: Document) -> Item:
    """Return an item of what is stored."""
    *namespace, key = document.path
    return Item(
        value=document.value,
        key=key,
        namespace=tuple(namespace),
        created_at=document.created_at,
        updated_at=document.updated_at,
    )


def search_item_of(document: Document, score: float | None = None) -> SearchItem:
    """Return an item that was found."""
    *namespace, key = document.path
    return SearchItem(
        tuple(namespace), key, document.value, document.created_at, document.updated_at, score
    )


def is_found(document: Document, op: SearchOp) -> bool:
    """Return True if a search finds an item in its namespace."""
    return all(
        _holds(document.value.get(name), wanted) for name, wanted in (op.filter or {}).items()
    )


def _holds(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, dict) and any(name.startswith("$") for name in wanted):
        return all(_compares(name, value, bound) for name, bound in wanted.items())
    if isinstance(wanted, dict):
        return isinstance(value, dict) and all(_holds(value.get(k), v) for k, v in wanted.items())
    return bool(value == wanted)


def _compares(name: str, value: Any, bound: Any) -> bool:
    if name not in _COMPARISONS:
        raise ValueError(f"a filter has no operator {name}: take one of {', '.join(_COMPARISONS)}")
    try:
        return _COMPARISONS[name](value, bound)
    except TypeError:  # of values that have no order
        return False


def namespaces(folders: Iterable[Path], op: ListNamespacesOp) -> list[Path]:
    """Return the namespaces that an operation asks for."""
    found = {
        folder[: op.max_depth] if op.max_depth is not None else folder
        for folder in folders
        if all(_matches(folder, condition) for condition in op.match_conditions or ())
    }
    return sorted(found)[op.offset : op.offset + op.limit]


def _matches(folder: Path, condition: MatchCondition) -> bool:
    wanted = condition.path
    if len(folder) < len(wanted):
        return False
    start = 0 if condition.match_type == "prefix" else len(folder) - len(wanted)
    names = folder[start : start + len(wanted)]
    return all(other in ("*", name) for name, other in zip(names, wanted, strict=True))
