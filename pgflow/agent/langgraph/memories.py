"""Items of a store as documents: what its operations ask for, without a database."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from langgraph.store.base import Item, ListNamespacesOp, MatchCondition, PutOp, SearchItem, SearchOp

from pgflow.documents import Document, Put

ITEMS = "langgraph.item"
Path = tuple[str, ...]

_COMPARISONS: dict[str, Callable[[Any, Any], bool]] = {
    "$eq": operator.eq,
    "$ne": operator.ne,
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}


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


def search_item_of(document: Document) -> SearchItem:
    """Return an item that was found."""
    *namespace, key = document.path
    return SearchItem(
        tuple(namespace), key, document.value, document.created_at, document.updated_at
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
