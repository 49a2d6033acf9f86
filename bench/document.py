"""The document that people read: one part a run of the bench, with machine, versions, tables and
evidence.

A whole run takes hours. With ``--add`` its scenarios may be measured one after the other: each part
replaces what the ones before it say of the same scenarios, and figures are compared within a part
only.
"""

from __future__ import annotations

import datetime as dt
import json
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from bench.catalog import CALIBRATION, COMPILED, LIMIT, OURSELVES, SCENARIOS
from bench.peers import Peer
from bench.report import Record, number, records_of, tables, verdict
from bench.runner import Results
from pgflow._version import __version__

INTRODUCTION = """\
Made by `python -m bench`: every engine in turn on the same Postgres, each in its own environment. pgflow is what the command of README installs, or compiled where the versions say so, pgflow_compiled the same after the C compiler; \
dbos and the other peers have their defaults, dbos_tuned what its documentation offers for throughput; \
in each program what is loaded is kept out of the garbage collector's sight, as `pgflow workers` does. Medians of the alternations, ± half of the range; in brackets how many times as good pgflow is. Sizes in the \
descriptions are those of a full run. Compare figures of one run with each other, not with those of another day."""


@dataclass(frozen=True)
class Part:
    """One run of the bench.

    Attributes:
        facts: Date, machine and versions.
        records: Measurements.
        evidence: Settings and counts of each engine, a line each.
        missing: Things that were not measured, and the reasons.
    """

    facts: dict[str, str]
    records: list[Record]
    evidence: list[str]
    missing: dict[str, str]

    @classmethod
    def of(
        cls,
        results: Results,
        machine: dict[str, str],
        settings: dict[str, str],
        peers: dict[str, Peer],
    ) -> Self:
        """Return the part for the run that has just ended."""
        records = records_of(results)
        server = {**settings}
        commits = results.runs[CALIBRATION.name, LIMIT]
        facts = {
            "date": dt.datetime.now(dt.UTC).strftime("%Y-%m-%d %H:%M UTC"),
            "machine": f"{machine['processors']}, {machine['system']}, Python {machine['python']}",
            "server": f"Postgres {server.pop('server_version')}, "
            + ", ".join(f"{name} {value}" for name, value in server.items()),
            "versions": ", ".join(
                f"{name} {version}" for name, version in _versions(records, peers, results.forms)
            ),
            "took": f"{results.took_seconds / 60:.1f} min, {results.rounds} alternation(s)",
            "calibration": f"{number(statistics.median(commits))} bare commits/s, "
            f"{number(min(commits))} to {number(max(commits))}",
        }
        return cls(facts, records, list(_evidence(results)), results.missing)

    @property
    def scenarios(self) -> set[str]:
        """The scenarios of which it has figures."""
        metrics = {record.metric for record in self.records}
        return {
            scenario.name
            for scenario in SCENARIOS
            if metrics & {metric.name for metric in scenario.metrics}
        }

    def without(self, scenarios: set[str]) -> Part | None:
        """Return the part without scenarios that have been measured again; None if nothing is
        left.
        """
        gone = {
            metric.name
            for scenario in SCENARIOS
            if scenario.name in scenarios
            for metric in scenario.metrics
        }
        left = Part(
            self.facts,
            [r for r in self.records if r.metric not in gone],
            self.evidence,
            self.missing,
        )
        return left if left.scenarios else None


def added(parts: Iterable[Part], new: Part) -> list[Part]:
    """The parts with a new one, which counts for what it has measured."""
    return [*(left for part in parts if (left := part.without(new.scenarios)) is not None), new]


def records_in(parts: Iterable[Part]) -> list[Record]:
    """Return the records of all parts; of the calibration the last."""
    found = {(record.metric, record.engine): record for part in parts for record in part.records}
    return list(found.values())


def read_parts(path: Path) -> list[Part]:
    """Parts from the file that :func:`write_parts` wrote; none if there is no file."""
    if not path.exists():
        return []
    return [
        Part(**{**part, "records": [Record(**record) for record in part["records"]]})
        for part in json.loads(path.read_text())
    ]


def write_parts(path: Path, parts: Iterable[Part]) -> None:
    """Keeps the parts for those to come."""
    path.write_text(json.dumps([asdict(part) for part in parts], indent=1) + "\n")


def markdown(parts: list[Part], *, plot: str | None = None) -> str:
    """The whole document."""
    lines = ["# Figures", "", INTRODUCTION, ""]
    if plot:
        lines += [f"![How many times as good pgflow is]({plot})", ""]
    for part in parts:
        if len(parts) > 1:
            lines += [
                f"## {', '.join(scenario.name for scenario in SCENARIOS if scenario.name in part.scenarios)}",
                "",
            ]
        lines += _lines_of(part)
    return "\n".join(lines)


def _lines_of(part: Part) -> Iterator[str]:
    yield from (f"- {name}: {value}" for name, value in part.facts.items())
    if reason := verdict(part.records):
        yield f"- **{reason}**"
    yield ""
    yield from tables(part.records)
    yield from (
        (
            "Settings of the committing sessions, from inside them; and what was counted after the "
            "timings:"
        ),
        "",
        *part.evidence,
        "",
    )
    if part.missing:
        yield from (
            "Not measured:",
            "",
            *(f"- {what}: {why}" for what, why in part.missing.items()),
            "",
        )


def _versions(
    records: list[Record], peers: dict[str, Peer], forms: dict[str, str]
) -> Iterator[tuple[str, str]]:
    for name in (OURSELVES, COMPILED):
        if any(record.engine == name for record in records):
            yield name, f"{__version__} ({forms[name]})" if name in forms else __version__
    for name in sorted({record.engine for record in records} & peers.keys()):
        yield name, peers[name].version


def _evidence(results: Results) -> Iterator[str]:
    for engine in sorted(results.settings.keys() | results.counted.keys()):
        settings = [
            f"{name} {'/'.join(values)}"
            for name, values in results.settings.get(engine, {}).items()
        ]
        counted = [f"{count:,} {what}" for what, count in results.counted.get(engine, {}).items()]
        yield f"- {engine}: {', '.join(settings + counted)}"
