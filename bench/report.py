"""Results: records, for machines as a list, for people as tables."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.catalog import CALIBRATION, LIMIT, METRICS, OURSELVES, SCENARIOS
from bench.runner import Results, measured, rank

STEADY_SHARE = 0.7
"""Share of the bare commits of the best alternation that the worst makes on a steady machine."""


@dataclass(frozen=True)
class Record:
    """One engine's figure.

    Attributes:
        runs: The value of each alternation.
        median: Their median.
        ratio_to_pgflow: The median by pgflow's, in the same run; None where pgflow has none.
    """

    metric: str
    engine: str
    unit: str
    better: str
    runs: list[float]
    median: float
    ratio_to_pgflow: float | None

    @property
    def spread(self) -> float:
        """Half the way from the least to the most, by the median."""
        return (max(self.runs) - min(self.runs)) / 2 / abs(self.median) if self.median else 0.0

    @property
    def behind(self) -> float | None:
        """Ratio by which pgflow is better; None without a ratio."""
        if self.ratio_to_pgflow is None or self.ratio_to_pgflow <= 0:
            return None
        return 1 / self.ratio_to_pgflow if self.better == "higher" else self.ratio_to_pgflow


def records_of(results: Results) -> list[Record]:
    """Every figure, in the order of the catalog."""
    records = []
    for name, metric in METRICS.items():
        ours = results.runs.get((name, OURSELVES))
        base = statistics.median(ours) if ours else None
        for engine in measured(results, [name]):
            runs = results.runs[name, engine]
            median = statistics.median(runs)
            records.append(
                Record(
                    name,
                    engine,
                    metric.unit,
                    metric.better,
                    runs,
                    median,
                    median / base if base else None,
                )
            )
    return records


def least_of(records: Iterable[Record]) -> list[Record]:
    """One record a metric and engine: the one with the least median."""
    least: dict[tuple[str, str], Record] = {}
    for record in records:
        known = least.setdefault((record.metric, record.engine), record)
        if record.median < known.median:
            least[record.metric, record.engine] = record
    return list(least.values())


def as_json(records: Iterable[Record]) -> str:
    return json.dumps([vars(record) for record in records], indent=1) + "\n"


def read_json(path: Path) -> list[Record]:
    return [Record(**entry) for entry in json.loads(path.read_text())]


def verdict(records: Iterable[Record]) -> str | None:
    """Return the reason why figures of different moments do not compare; None if they do, or if
    nothing tells.
    """
    for record in records:
        if (record.metric, record.engine) == (CALIBRATION.name, LIMIT):
            least, most = min(record.runs), max(record.runs)
            if least < STEADY_SHARE * most:
                return (
                    f"disturbed: the machine made {number(least)} to {number(most)} bare commits a "
                    "second. Engines were measured side by side in each alternation, so ratios "
                    "hold better than figures"
                )
    return None


def number(value: float) -> str:
    """Three digits that matter, at least."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) >= 0.001 else "0"


def tables(records: list[Record]) -> Iterator[str]:
    """One Markdown table a scenario: a row a metric, a column an engine."""
    for scenario in SCENARIOS:
        names = [metric.name for metric in scenario.metrics]
        chosen = {(r.metric, r.engine): r for r in records if r.metric in names}
        engines = sorted({engine for _, engine in chosen}, key=rank)
        if not engines:
            continue
        yield f"| {scenario.name} | unit | {' | '.join(engines)} |"
        yield f"|---|---|{'---:|' * len(engines)}"
        for metric in scenario.metrics:
            cells = [_cell(chosen.get((metric.name, engine))) for engine in engines]
            if any(cells):
                yield f"| {metric.says} | {metric.unit} | {' | '.join(cells)} |"
        yield ""


def _cell(record: Record | None) -> str:
    if record is None:
        return ""
    spread = f" ±{record.spread:.0%}" if len(record.runs) > 1 else ""
    behind = (
        f" ({record.behind:.3g}x)"
        if record.behind is not None and record.engine != OURSELVES
        else ""
    )
    return f"{number(record.median)}{spread}{behind}"
