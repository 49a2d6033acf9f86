"""The evidence of a layer of the proof: which promise was put to which fault, how often, and with
which result.

Every layer has a function ``prove(server_dsn, amount, seed) -> Findings`` and is a program of its
own; the proof (`python -m tests.proof`) runs them all and writes `docs/GUARANTEES.md` from what
they return. ``server_dsn`` is a superuser's; a layer makes the databases that it needs and drops
them. ``amount`` is a count: what it counts is named in `tests/proof/layers.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Evidence:
    """One promise under one fault. ``runs`` counts how often the promise was put to the test."""

    guarantee: str
    fault: str
    runs: int
    lost: int = 0
    doubled: int = 0
    wrong: tuple[str, ...] = ()
    """Anything else that broke it, one line each."""
    figure: str = ""
    """Another measurement, such as the slowest recovery, with its unit."""
    shared: int = 0
    """Number of another line's ``runs`` by which this promise was judged too: no sum counts one of
    them twice.
    """

    @property
    def holds(self) -> bool:
        """True if it was tested at all, and nothing spoke against it."""
        return self.runs + self.shared > 0 and not (self.lost or self.doubled or self.wrong)


@dataclass
class Findings:
    """Findings of one layer."""

    layer: str
    seed: int
    evidence: list[Evidence] = field(default_factory=list)
    fired: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Number of times that each fault happened, and that it must have for the run to count."""
    seconds: float = 0.0
    commit: str = ""
    """The commit that was tested, if it is another than that of the run."""

    @property
    def void(self) -> list[str]:
        """Faults that did not happen often enough: nothing is proven then."""
        return [
            f"{fault}: {times} of {minimum}"
            for fault, (times, minimum) in self.fired.items()
            if times < minimum
        ]

    @property
    def broken(self) -> list[Evidence]:
        """Evidence that does not hold."""
        return [e for e in self.evidence if not e.holds]
