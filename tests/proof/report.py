"""The table: promise, fault, figure."""

from __future__ import annotations

import subprocess
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

from evidence import Evidence, Findings

from proof.promises import NOT_BUILT, PROMISES

REPOSITORY = Path(__file__).parents[2]
EXPLANATION = REPOSITORY / "docs" / "explanation" / "guarantees.md"

HEAD = """\
# Guarantees, the faults that test them, and the figures

Written by `python -m tests.proof{arguments}` in {minutes:.0f} minutes on {date}, of commit `{commit}`, seed {seed}, on Postgres {versions}. \
How each promise is kept is in [Guarantees, and what is not one](explanation/guarantees.md).

**{runs:,} tests of {proven} promises: {lost} lost, {doubled} doubled, {wrong} otherwise broken. Mutants caught: {mutants}.**

`runs` counts how often the promise was put to that fault: transactions, kills, cuts, programs, values. A run in which a fault happened \
less often than it must is void and writes nothing.

| id | promise | fault | runs | lost | doubled | figure | seed | commit | Postgres |
|---|---|---|---:|---:|---:|---|---:|---|---|
"""


@dataclass
class Line:
    """A row: one promise under one fault, on all servers."""

    runs: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)

    def add(self, evidence: Evidence, version: str) -> None:
        """Adds what one server showed."""
        self.runs += evidence.runs
        self.lost += evidence.lost
        self.doubled += evidence.doubled
        self.wrong += evidence.wrong
        if evidence.figure and evidence.figure not in self.figures:
            self.figures.append(evidence.figure)
        if version not in self.versions:
            self.versions.append(version)


def lines_of(results: list[tuple[str, Findings]]) -> dict[tuple[str, str], Line]:
    """The rows, in the order of the promises."""
    lines: dict[tuple[str, str], Line] = defaultdict(Line)
    for version, findings in results:
        for evidence in findings.evidence:
            lines[evidence.guarantee, evidence.fault].add(evidence, version)
    order = list(PROMISES)
    return dict(sorted(lines.items(), key=lambda item: order.index(item[0][0]) if item[0][0] in order else -1))


def commit_hash() -> str:
    """Of the code at hand."""
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def table(results: list[tuple[str, Findings]], *, arguments: str, seconds: float, date: str, seed: int) -> str:
    """The page."""
    lines = lines_of(results)
    commit = commit_hash()
    versions = sorted({version for version, _ in results})
    caught = [e for _, findings in results for e in findings.evidence if findings.layer == "mutants"]
    page = HEAD.format(
        arguments=arguments, minutes=seconds / 60, date=date, commit=commit, seed=seed, versions=" and ".join(versions),
        runs=sum(line.runs for line in lines.values()), proven=len({guarantee for guarantee, _ in lines} & set(PROMISES)),
        lost=sum(line.lost for line in lines.values()), doubled=sum(line.doubled for line in lines.values()),
        wrong=sum(len(line.wrong) for line in lines.values()), mutants=", ".join(dict.fromkeys(e.figure for e in caught)) or "not run",
    )
    proven = {guarantee for guarantee, _ in lines}
    for guarantee, promise in PROMISES.items():
        rows = [(fault, line) for (g, fault), line in lines.items() if g == guarantee]
        for number, (fault, line) in enumerate(rows):
            said = promise if number == 0 else ""
            page += (
                f"| {guarantee} | {said} | {fault} | {line.runs:,} | {line.lost} | {line.doubled} | {'; '.join(line.figures)} | {seed} | "
                f"{commit} | {', '.join(line.versions)} |\n"
            )
        if guarantee not in proven:
            reason = f"not built: {NOT_BUILT[guarantee]}" if guarantee in NOT_BUILT else "not in this run"
            page += f"| {guarantee} | {promise} | {reason} | | | | | | | |\n"
    rest = [(guarantee, fault, line) for (guarantee, fault), line in lines.items() if guarantee not in PROMISES]
    if rest:
        page += "\n## What the proof says of itself\n\n| | runs | figure |\n|---|---:|---|\n"
        page += "".join(f"| {fault} | {line.runs:,} | {'; '.join(line.figures)} |\n" for _, fault, line in rest)
    return page + faults(results) + "\n" + non_guarantees()


def faults(results: list[tuple[str, Findings]]) -> str:
    """How often each fault happened."""
    times: dict[tuple[str, str], int] = defaultdict(int)
    for _, findings in results:
        for fault, (count, _) in findings.fired.items():
            times[findings.layer, fault] += count
    if not times:
        return ""
    rows = "".join(f"| {layer} | {fault} | {count:,} |\n" for (layer, fault), count in times.items())
    return f"\n## Faults that happened\n\n| layer | fault | times |\n|---|---|---:|\n{rows}"


def non_guarantees() -> str:
    """The section of the explanation that says what is not promised, so that there is one wording."""
    text = EXPLANATION.read_text()
    return text[text.index("## What does not") :].replace("## What does not", "## What is not promised").replace("](../", "](").rstrip() + "\n"


def broken(results: list[tuple[str, Findings]]) -> list[str]:
    """What speaks against the code, or against the run; empty if nothing does."""
    said = []
    for version, findings in results:
        where = f"{findings.layer} on {version}"
        said += [f"{where}: void: {fault}" for fault in findings.void]
        for e in findings.broken:
            said.append(f"{where}: {e.guarantee} ({e.fault}): {e.runs} runs, {e.lost} lost, {e.doubled} doubled")
            said += [f"{where}: {e.guarantee}: {line}" for line in e.wrong[:20]]
        if not findings.evidence:
            said.append(f"{where}: it shows nothing")
    return said
