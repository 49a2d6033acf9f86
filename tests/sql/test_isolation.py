"""Interleavings of every pair of API calls that can meet: see `isolationkit`."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import isolationkit
import pytest
from isolation.situations import APART, HOLDERS, LOOKERS, VERBS, all_specs, spec_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAMES = [spec.name for spec in all_specs()]


@pytest.fixture(scope="module")
def printed(request: pytest.FixtureRequest, server_dsn: str) -> Iterator[dict[str, Future[str]]]:
    """Return the output of the specs that are asked for, each as a future; several play at once."""
    asked = [
        item.callspec.params["name"]
        for item in request.session.items
        if item.name.startswith("test_calls_that_meet[")
    ]
    with (
        isolationkit.stages(server_dsn) as play_next,
        ThreadPoolExecutor(isolationkit.STAGES) as pool,
    ):
        yield {name: pool.submit(play_next, isolationkit.SPECS / f"{name}.spec") for name in asked}


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_calls_that_meet(printed: dict[str, Future[str]], name: str) -> None:
    text = printed[name].result()
    assert isolationkit.faults(name, text) == []
    assert isolationkit.difference(name, text) == ""


def test_the_specs_are_those_of_the_table() -> None:
    assert len(set(NAMES)) == len(NAMES)
    written = {path.stem: path.read_text() for path in isolationkit.SPECS.glob("*.spec")}
    assert written == {spec.name: spec_text(spec) for spec in all_specs()}, (
        "write them: python -m tests.isolation --write"
    )
    assert {path.stem for path in isolationkit.EXPECTED.glob("*.sums")} >= set(NAMES)


def meetings(*, variants: bool) -> set[frozenset[str]]:
    """Pairs of verbs that some spec has; a variant counts as its verb unless variants are asked
    for.
    """
    names = {name: name if variants else verb.of or name for name, verb in VERBS.items()}
    return {
        frozenset((names[a.verb.name], names[b.verb.name]))
        for spec in all_specs()
        for actors in spec.meetings
        for n, a in enumerate(actors)
        for b in actors[n + 1 :]
    }


def test_every_pair_of_calls_meets_or_cannot() -> None:
    met = meetings(variants=False)
    apart = {frozenset((a, b)) for these, those, _ in APART for a in these for b in those}
    verbs = [name for name, verb in VERBS.items() if not verb.of]
    pairs = {frozenset(pair) for pair in combinations_with_replacement(verbs, 2)}
    assert sorted(map(sorted, pairs - met - apart)) == []


def test_signals_from_every_isolation_level_meet_whatever_moves_a_run() -> None:
    movers = (*HOLDERS, *LOOKERS, "reap")
    wanted = {
        frozenset((mover, signal))
        for mover in movers
        if not VERBS[mover].isolation
        for signal in ("signal", "signal_rr", "signal_ser")
    }
    assert sorted(map(sorted, wanted - meetings(variants=True))) == []


def test_an_order_that_prints_something_else_is_shown_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolationkit, "EXPECTED", tmp_path)
    printed = "Parsed test spec with 2 sessions\n\nstarting permutation: a b\nstep a: x\n\nstarting permutation: b a\nstep b: y\n"
    (tmp_path / "spec.sums").write_text(isolationkit.summed(printed))
    assert [line.partition(" ")[2] for line in isolationkit.summed(printed).splitlines()] == [
        "",
        "a b",
        "b a",
    ]
    assert isolationkit.difference("spec", printed) == ""
    told = isolationkit.difference("spec", printed.replace("step b: y", "step b: z"))
    assert (
        told == "spec, b a: expected, and not printed\nspec, b a: prints this, which is not "
        "expected\nstep b: z\n"
    )
    assert "a b: expected, and not printed" in isolationkit.difference(
        "spec", printed.replace("a b\n", "b b\n")
    )
    assert isolationkit.difference("other", printed) != ""


def test_what_must_never_be_is_found_in_what_is_printed() -> None:
    look = "place |journal|mail|said|lost|doubled|unsound\n------+---\nk lease|||| 1| 0|no wake-up is lost\n"
    printed = f"Parsed test spec\n\nstarting permutation: a b look\nstep a: x\nstep b: y\nERROR:  deadlock detected\nstep look: z\n{look}"
    assert isolationkit.faults("spec", printed) == [
        "spec, a b look: b: deadlock detected",
        "spec, a b look: no wake-up is lost",
        "spec, a b look: 1 lost, 0 doubled",
    ]
    assert (
        isolationkit.faults("spec", printed.replace(look, ""))[1]
        == "spec, a b look: it did not come to its end"
    )
