"""The checker of proofs: shows without a database that a run is unchanged since it was sealed.

It takes what ``pgflow audit proof`` and ``pgflow audit anchor`` have written, and needs nothing but
SHA-256. Copy this file to wherever you do not trust pgflow.

All hashes are SHA-256. A unit's text is hashed as it is. A seal is the hash of ``02``, the seal
before it (at first, the hash of the run's text), the hash of the hashes of the units since, their
last number in 4 bytes, and the hash of the outcome's text once it has ended. A round is the hash of
``04``, its number and its time in microseconds in 8 bytes each, and the Merkle root over its seals.
A day is the Merkle root over its rounds. In a tree (RFC 6962), a leaf is hashed behind ``00``, two
neighbours behind ``01``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any


def check_proof(proof: Mapping[str, Any], anchor: Mapping[str, Any]) -> list[str]:
    """Check a run's proof against an anchor that was kept elsewhere.

    Args:
        proof: Output of ``pgflow audit proof KEY``.
        anchor: Output of ``pgflow audit anchor``, from after the run was sealed.

    Returns:
        Each thing that does not hold, in a sentence; empty if the run is as it was sealed.
    """
    problems = check_anchor(anchor)
    for number, run in enumerate(proof["runs"], 1):
        problems += [f"run {number}: {problem}" for problem in _check_run(run, anchor)]
    return problems if proof["runs"] else [*problems, "the proof has no run"]


def check_anchor(anchor: Mapping[str, Any]) -> list[str]:
    """Check that the heads of an anchor's days follow from each other.

    Args:
        anchor: Output of ``pgflow audit anchor``.

    Returns:
        Each thing that does not hold, in a sentence; empty if all is well.
    """
    head, problems = b"", []
    for day in anchor["days"]:
        head = _hash(b"\3", head, day["day"].encode(), bytes.fromhex(day["root"]))
        if head.hex() != day["head"]:
            problems.append(f"the head of {day['day']} does not follow from the day before it")
            head = bytes.fromhex(day["head"])
    return problems


def _check_run(run: Mapping[str, Any], anchor: Mapping[str, Any]) -> list[str]:
    problems: list[str] = []
    units: Sequence[str] = run["units"]
    if [_number(unit) for unit in units] != list(range(1, len(units) + 1)):
        problems.append("its units are not numbered from 1 without a gap")
    head, after, outcome = _hash(run["run"].encode()), 0, ""
    for seal in run["seals"]:
        upto, outcome = seal["upto_seq"], seal["outcome_hash"] or ""
        since = _hash(*(_hash(unit.encode()) for unit in units[after:upto]))
        head = _hash(b"\2", head, since, upto.to_bytes(4, "big"), bytes.fromhex(outcome))
        place = f"the seal of units {after + 1} to {upto}"
        if head.hex() != seal["hash"]:
            problems.append(f"{place} is not that of its units")
        elif (problem := _check_seal(head, seal, anchor)) is not None:
            problems.append(f"{place} {problem}")
        head, after = bytes.fromhex(seal["hash"]), upto
    if after < len(units):
        problems.append(f"units from {after + 1} on have no seal")
    outcome_hash = "" if run["outcome"] is None else _hash(run["outcome"].encode()).hex()
    if outcome and outcome_hash != outcome:
        problems.append("its outcome is not the one that was sealed")
    return problems


def _check_seal(head: bytes, seal: Mapping[str, Any], anchor: Mapping[str, Any]) -> str | None:
    """Return the problems of the path from a seal to its day."""
    numbers = seal["round"].to_bytes(8, "big") + seal["sealed_us"].to_bytes(8, "big", signed=True)
    round_hash = _hash(b"\4", numbers, _climb(head, seal["path"]))
    root = _climb(round_hash, seal["day_path"]).hex()
    kept = _find(seal, anchor)
    if kept is None:
        return "is in no day of the anchor: take a newer one"
    return None if root == kept["root"] else "does not lead to the root in the anchor"


def _find(seal: Mapping[str, Any], anchor: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return what an anchor has of the day of a seal, or of the rounds up to it."""
    rounds: list[Mapping[str, Any]] = [
        *anchor["days"],
        *([anchor["open"]] if anchor.get("open") else []),
    ]
    for kept in rounds:
        if all(kept.get(name) == seal[name] for name in ("day", "first_round", "last_round")):
            return kept
    return None


def _number(unit: str) -> Any:
    """Return the place that a unit's text says it has; None if it says none."""
    try:
        return json.loads(unit)[0]
    except (ValueError, TypeError, LookupError):
        return None


def _climb(leaf: bytes, path: Iterable[tuple[str, str]]) -> bytes:
    """Return the root that a path leads to."""
    node = _hash(b"\0", leaf)
    for side, neighbour in path:
        beside = bytes.fromhex(neighbour)
        node = _hash(b"\1", beside, node) if side == "left" else _hash(b"\1", node, beside)
    return node


def _hash(*parts: bytes) -> bytes:
    return sha256(b"".join(parts)).digest()
