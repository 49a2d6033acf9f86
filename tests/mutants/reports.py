"""The report of a campaign: `report.json` with every trial, `report.md` with tables and survivors."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from .trials import HUNG, INVALID, NOTICED, SURVIVED, UNREACHED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from .trials import Trial

REPOSITORY = Path(__file__).parents[2]
COLUMNS = ("mutants", "noticed by default", "only by full", SURVIVED, UNREACHED, "other")


class Report:
    """The trials so far; the last one of a mutant counts."""

    def __init__(self, seed: int, places: int) -> None:
        self.seed, self.places = seed, places
        self._trials: dict[str, Trial] = {}

    def add(self, trial: Trial) -> None:
        """Put a trial in its place."""
        self._trials[trial.mutant.id] = trial

    @property
    def trials(self) -> list[Trial]:
        """Those of mutants that can be made."""
        return [trial for trial in self._trials.values() if trial.verdict != INVALID]

    def of(self, *verdicts: str) -> list[Trial]:
        """The trials with one of these verdicts."""
        return [trial for trial in self.trials if trial.verdict in verdicts]

    @property
    def figure(self) -> str:
        """The sum in one line."""
        made = len(self.trials)
        default = sum(trial.tier == "default" for trial in self.of(NOTICED))
        return (
            f"{len(self.of(NOTICED))}/{made} noticed ({default} by the default tier), "
            f"{len(self.of(SURVIVED, HUNG))} survived, {len(self.of(UNREACHED))} not reached, "
            f"drawn from {self.places}"
        )

    def write(self, folder: Path) -> None:
        """Write both files."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "report.json").write_text(json.dumps(self._data(), indent=1) + "\n")
        (folder / "report.md").write_text(self.markdown())

    def _data(self) -> dict[str, object]:
        trials = [
            {
                "id": trial.mutant.id,
                "verdict": trial.verdict,
                "tier": trial.tier,
                "by": trial.by,
                "tried": trial.tried,
                "reaching": trial.reaching,
                "said": trial.said,
                "unsound": trial.unsound,
                "diff": _diff(trial),
            }
            for trial in sorted(self._trials.values(), key=lambda trial: trial.mutant.id)
        ]
        return {"seed": self.seed, "places": self.places, "trials": trials}

    def markdown(self) -> str:
        """Return the page."""
        parts = [f"# Mutants\n\nSeed {self.seed}: {self.figure}."]
        parts.append(self._table("room", lambda trial: trial.mutant.room))
        parts.append(self._table("operator", lambda trial: trial.mutant.operator))
        for verdict in (SURVIVED, HUNG, UNREACHED):
            found = sorted(self.of(verdict), key=lambda trial: trial.mutant.id)
            if found:
                parts.append(f"## {verdict.capitalize()}")
                parts += [_entry(trial) for trial in found]
        return "\n\n".join(parts) + "\n"

    def _table(self, name: str, key: Callable[[Trial], str]) -> str:
        groups: dict[str, list[Trial]] = {}
        for trial in self.trials:
            groups.setdefault(key(trial), []).append(trial)
        rows = [[name, *COLUMNS], ["---"] * (len(COLUMNS) + 1)]
        rows += [[group, *map(str, _counts(groups[group]))] for group in sorted(groups)]
        rows.append(["**all**", *map(str, _counts(self.trials))])
        return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _counts(trials: Sequence[Trial]) -> Iterable[int]:
    verdicts = Counter(trial.verdict for trial in trials)
    default = sum(trial.verdict == NOTICED and trial.tier == "default" for trial in trials)
    known = verdicts[NOTICED] + verdicts[SURVIVED] + verdicts[UNREACHED]
    return (
        len(trials),
        default,
        verdicts[NOTICED] - default,
        verdicts[SURVIVED],
        verdicts[UNREACHED],
        len(trials) - known,
    )


def _diff(trial: Trial) -> str:
    return trial.mutant.diff((REPOSITORY / trial.mutant.path).read_text())


def _entry(trial: Trial) -> str:
    tests = f"{trial.tried} of the {trial.reaching} tests that reach it were tried."
    return f"### `{trial.mutant.id}`\n\n{tests}\n\n```diff\n{_diff(trial)}\n```"
