"""Interleavings of every pair of API calls that can meet: see `isolationkit`."""

from __future__ import annotations

from itertools import combinations_with_replacement

import isolationkit
from isolation.situations import APART, HOLDERS, LOOKERS, VERBS, all_specs


def test_each_spec_of_the_table_has_a_name_and_a_digest_for_each_of_its_orders():
    orders = {spec.name: len(spec.permutations()) for spec in all_specs()}
    assert len(orders) == len(list(all_specs()))
    kept = isolationkit.read_expected()
    assert {name: len(digests) for name, digests in kept.items()} == orders, (
        "play them: python -m tests.isolation DSN --write"
    )


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


def test_every_pair_of_calls_meets_or_cannot():
    met = meetings(variants=False)
    apart = {frozenset((a, b)) for these, those, _ in APART for a in these for b in those}
    verbs = [name for name, verb in VERBS.items() if not verb.of]
    pairs = {frozenset(pair) for pair in combinations_with_replacement(verbs, 2)}
    assert sorted(map(sorted, pairs - met - apart)) == []


def test_signals_from_every_isolation_level_meet_whatever_moves_a_run():
    movers = (*HOLDERS, *LOOKERS, "reap")
    wanted = {
        frozenset((mover, signal))
        for mover in movers
        if not VERBS[mover].isolation
        for signal in ("signal", "signal_rr", "signal_ser")
    }
    assert sorted(map(sorted, wanted - meetings(variants=True))) == []


def test_an_order_that_prints_something_else_is_shown_in_full(tmp_path, monkeypatch):
    name = next(spec.name for spec in all_specs())
    monkeypatch.setattr(isolationkit, "EXPECTED", tmp_path / "expected.txt")
    printed = "Parsed test spec with 2 sessions\n\nstarting permutation: a b\nstep a: x\n\nstarting permutation: b a\nstep b: y\n"
    isolationkit.write_expected({name: printed, "a spec that is gone": printed})
    assert isolationkit.read_expected() == {name: isolationkit.digests(printed)}
    assert isolationkit.difference(name, printed) == ""
    found = isolationkit.difference(name, printed.replace("step b: y", "step b: z"))
    assert found == f"{name}, b a: prints this, which is not expected\nstep b: z\n"
    assert (
        isolationkit.difference(name, printed.partition("\nstarting permutation: b a")[0] + "\n")
        == f"{name}: 1 orders are played, 2 are expected"
    )
    assert isolationkit.difference("other", printed) == "other: 2 orders are played, 0 are expected"


def test_what_must_never_be_is_found_in_what_is_printed():
    look = "place |journal|mail|said|lost|doubled|unsound\n------+---\nk lease|||| 1| 0|no wake-up is lost\n"
    printed = f"Parsed test spec\n\nstarting permutation: a b look\nstep a: x\nstep b: y\nERROR:  deadlock detected\nstep look: z\n{look}"
    assert isolationkit.faults("spec", printed) == [
        "spec, a b look: b: deadlock detected",
        "spec, a b look: no wake-up is lost",
        "spec, a b look: 1 lost, 0 doubled",
    ]
    found = isolationkit.faults("spec", printed.replace(look, ""))[1]
    assert found == "spec, a b look: it did not come to its end"
