"""What came out, as a list for machines and as tables for people."""

from __future__ import annotations

import datetime as dt
import json
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.catalog import CALIBRATION, LIMIT, METRICS, OURSELVES, SCENARIOS
from bench.peers import Peer
from bench.runner import Results, measured
from pgflow._version import __version__

DBOS_STEPS_AT_32 = 230.0
VALID_SHARE = 0.7

INTRODUCTION = """\
Made by `python -m bench`: every engine in turn on the same Postgres, each in its own environment, with its defaults. \
Medians of {rounds} alternation(s), ± half of the range; in brackets how many times as good pgflow is. Sizes in the \
descriptions are those of a full run. Compare figures of one run with each other, not with those of another day."""


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
        """How many times as good pgflow is."""
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
            records.append(Record(name, engine, metric.unit, metric.better, runs, median, median / base if base else None))
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
    """Why the run does not count; None if it does, or if nothing tells."""
    for record in records:
        if (record.metric, record.engine) == ("steps_per_second_at_32", "dbos") and record.median < VALID_SHARE * DBOS_STEPS_AT_32:
            return (
                f"void: DBOS makes {record.median:.0f} steps/s at 32 threads, less than {VALID_SHARE} of the {DBOS_STEPS_AT_32:.0f} "
                "of this machine when it is quiet"
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
        engines = sorted({engine for _, engine in chosen}, key=lambda e: (e != OURSELVES, e == LIMIT, e))
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
    behind = f" ({record.behind:.3g}x)" if record.behind is not None and record.engine != OURSELVES else ""
    return f"{number(record.median)}{spread}{behind}"


def markdown(results: Results, records: list[Record], facts: dict[str, str], peers: dict[str, Peer], *, plot: str | None = None) -> str:
    """The whole report."""
    calibration = next(r for r in records if r.metric == CALIBRATION.name)
    lines = [
        "# Figures",
        "",
        INTRODUCTION.format(rounds=results.rounds),
        "",
        *(f"- {name}: {value}" for name, value in facts.items()),
        "- versions: " + ", ".join(f"{name} {version}" for name, version in _versions(records, peers)),
        f"- calibration: {number(calibration.median)} bare commits/s, {number(min(calibration.runs))} to {number(max(calibration.runs))}",
        *(f"- **{reason}**" for reason in [verdict(records)] if reason),
        "",
        *tables(records),
        "Settings of the committing sessions, from inside them; and what was counted after the timings:",
        "",
        *_evidence(results),
        "",
    ]
    if results.missing:
        lines += ["Not measured:", "", *(f"- {what}: {why}" for what, why in results.missing.items()), ""]
    if plot:
        lines += [f"![How many times as good pgflow is]({plot})", ""]
    return "\n".join(lines)


def _versions(records: list[Record], peers: dict[str, Peer]) -> Iterator[tuple[str, str]]:
    yield OURSELVES, __version__
    for name in sorted({record.engine for record in records} & peers.keys()):
        yield name, peers[name].version


def _evidence(results: Results) -> Iterator[str]:
    for engine in sorted(results.settings.keys() | results.counted.keys()):
        settings = [f"{name} {'/'.join(values)}" for name, values in results.settings.get(engine, {}).items()]
        counted = [f"{count:,} {what}" for what, count in results.counted.get(engine, {}).items()]
        yield f"- {engine}: {', '.join(settings + counted)}"


def facts_of(machine: dict[str, str], settings: dict[str, str], results: Results) -> dict[str, Any]:
    """Where and when."""
    return {
        "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": f"{machine['processors']}, {machine['system']}, Python {machine['python']}",
        "server": f"Postgres {settings.pop('server_version')}, " + ", ".join(f"{name} {value}" for name, value in settings.items()),
        "took": f"{results.took_seconds / 60:.1f} min",
    }
