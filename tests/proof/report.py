"""The record of a run, and the page that is made of it and of nothing else.

A full run writes both: `docs/GUARANTEES.json` holds what each layer found on each server, of which
commit and with which texts of the promises; `docs/GUARANTEES.md` is :func:`page` of that, which a
test repeats.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections import defaultdict
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from evidence import Evidence, Findings

from proof.promises import NOT_BUILT, PROMISES

REPOSITORY = Path(__file__).parents[2]
CODE = (".py", ".sql", ".toml", ".yaml", ".spec")
EXPLANATION = REPOSITORY / "docs" / "explanation" / "guarantees.md"

HEAD = """\
# Guarantees, the faults that test them, and the figures

Written by `python -m tests.proof{arguments}` in {minutes:.0f} minutes on {date}, of commit `{commit}`{changed}, seed {seed}, on Postgres {versions}. \
How each promise is kept is in [Guarantees and their limits](explanation/guarantees.md).

**{runs:,} tests of {proven} promises: {lost} lost, {doubled} doubled, {wrong} otherwise broken. Mutants: {mutants}.**

`runs` counts how often the promise was put to that fault: transactions, kills, cuts, programs, values. `shared` counts what another \
promise was tested by too and what its line counts as its runs: no sum counts anything twice. A run in which a fault happened less often \
than it must is void and writes nothing.

| id | promise | fault | runs | shared | lost | doubled | figure | seed | commit | Postgres |
|---|---|---|---:|---:|---:|---:|---|---:|---|---|
"""


@dataclass
class Line:
    """A row: one promise under one fault, on all servers."""

    runs: int = 0
    shared: int = 0
    lost: int = 0
    doubled: int = 0
    wrong: list[str] = field(default_factory=list)
    figures: list[str] = field(default_factory=list)
    versions: list[str] = field(default_factory=list)
    commit: str = ""
    seed: int = 0

    def add(self, evidence: Evidence, version: str, findings: Findings) -> None:
        """Adds what one server showed."""
        self.commit, self.seed = findings.commit, findings.seed
        self.runs += evidence.runs
        self.shared += evidence.shared
        self.lost += evidence.lost
        self.doubled += evidence.doubled
        self.wrong += evidence.wrong
        if evidence.figure and evidence.figure not in self.figures:
            self.figures.append(evidence.figure)
        if version not in self.versions:
            self.versions.append(version)


def lines_of(
    results: list[tuple[str, Findings]], promises: dict[str, str]
) -> dict[tuple[str, str], Line]:
    """The rows, in the order of the promises."""
    lines: dict[tuple[str, str], Line] = defaultdict(Line)
    for version, findings in results:
        for evidence in findings.evidence:
            lines[evidence.guarantee, evidence.fault].add(evidence, version, findings)
    order = list(promises)
    return dict(
        sorted(
            lines.items(), key=lambda item: order.index(item[0][0]) if item[0][0] in order else -1
        )
    )


@dataclass(frozen=True)
class Tree:
    """Tree that was tested: a commit, and whether files differed from it."""

    commit: str
    is_dirty: bool


def tree_at_hand() -> Tree:
    """The commit at hand. What a run writes itself is no change, nor is a new file that is not
    code; without a history nobody can tell.
    """
    commit, status = (
        _git("rev-parse", "--short", "HEAD"),
        _git("status", "--porcelain", "-uall", "--", ".", ":!docs/GUARANTEES.*"),
    )
    changed = [
        line for line in status.splitlines() if not line.startswith("??") or line.endswith(CODE)
    ]
    return Tree(commit or "unknown", bool(changed) or not commit)


def hash_of_tree() -> str:
    """Return a hash of all that could change a verdict: Git's of the tree, or, where files differ
    from the commit or there is none, one of the files of this repository.
    """
    if not tree_at_hand().is_dirty:
        return _git("rev-parse", "HEAD^{tree}")
    names = _git("ls-files", "--cached", "--others", "--exclude-standard", "-z").split("\0")
    if names == [""]:
        names = [str(path.relative_to(REPOSITORY)) for path in REPOSITORY.rglob("*")]
    hashed = hashlib.sha1(usedforsecurity=False)
    for name in sorted(names):
        path = REPOSITORY / name
        if path.suffix in CODE and path.is_file():
            hashed.update(f"{name}\0".encode() + path.read_bytes())
    return hashed.hexdigest()


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def record(
    results: list[tuple[str, Findings]],
    *,
    arguments: str,
    seconds: float,
    date: str,
    seed: int,
    trees: tuple[Tree, Tree],
) -> dict[str, Any]:
    """Everything that the page says, as JSON can hold it.

    Args:
        trees: Trees at hand when the run began, and when it ended: if they differ, nobody knows
            what was tested.
    """
    began, ended = trees
    return {
        "arguments": arguments,
        "seconds": seconds,
        "date": date,
        "seed": seed,
        "commit": began.commit,
        "is_dirty": began.is_dirty or began != ended,
        "results": [{"postgres": version, **asdict(findings)} for version, findings in results],
        "promises": PROMISES,
        "not_built": NOT_BUILT,
        "not_promised": non_guarantees(),
    }


def with_claims(
    run: dict[str, Any], found: list[tuple[str, Findings]], tree: Tree
) -> dict[str, Any]:
    """Return the record of a run with promises whose tests were played again later.

    Args:
        run: The record.
        found: Version of the server, and what the tests of the promises said there.
        tree: The tree that was tested.
    """
    again = {one.guarantee for _, findings in found for one in findings.evidence}
    kept = [
        {
            **entry,
            "evidence": [
                one
                for one in entry["evidence"]
                if entry["layer"] != "tests" or one["guarantee"] not in again
            ],
        }
        for entry in run["results"]
    ]
    return _with(run, kept, found, tree)


def with_layers(
    run: dict[str, Any], found: list[tuple[str, Findings]], tree: Tree
) -> dict[str, Any]:
    """Return the record of a run with layers that were played again later, on all their servers.

    Args:
        run: The record.
        found: Version of the server, and findings of each layer.
        tree: The tree that was tested.
    """
    again = {findings.layer for _, findings in found}
    kept = [entry for entry in run["results"] if entry["layer"] not in again]
    return _with(run, kept, found, tree)


def _with(
    run: dict[str, Any], kept: list[Any], found: list[tuple[str, Findings]], tree: Tree
) -> dict[str, Any]:
    for version, findings in found:
        findings.commit = tree.commit + ("+changes" if tree.is_dirty else "")
        kept.append({"postgres": version, **asdict(findings)})
    return {**run, "results": kept, "promises": PROMISES, "not_built": NOT_BUILT}


def results_of(run: dict[str, Any]) -> list[tuple[str, Findings]]:
    """The findings in a record, with the version of the server of each."""
    results = []
    for entry in run["results"]:
        data = dict(entry)
        version, evidence, fired = data.pop("postgres"), data.pop("evidence"), data.pop("fired")
        found = [Evidence(**{**e, "wrong": tuple(e["wrong"])}) for e in evidence]
        results.append(
            (
                version,
                Findings(
                    evidence=found,
                    fired={fault: (times, least) for fault, (times, least) in fired.items()},
                    **data,
                ),
            )
        )
    return results


def page(run: dict[str, Any]) -> str:
    """The page of a record."""
    results, promises, not_built = results_of(run), run["promises"], run["not_built"]
    lines = lines_of(results, promises)
    commit, seed = run["commit"] + ("+changes" if run["is_dirty"] else ""), run["seed"]
    versions = sorted({version for version, _ in results})
    caught = [
        e for _, findings in results for e in findings.evidence if findings.layer == "mutants"
    ]
    proven = {guarantee for guarantee, _ in lines}
    text = HEAD.format(
        arguments=run["arguments"],
        minutes=run["seconds"] / 60,
        date=run["date"],
        commit=run["commit"],
        seed=seed,
        versions=" and ".join(versions),
        changed=" **with changes that are not committed**" if run["is_dirty"] else "",
        runs=sum(line.runs for line in lines.values()),
        proven=len(proven & set(promises)),
        lost=sum(line.lost for line in lines.values()),
        doubled=sum(line.doubled for line in lines.values()),
        wrong=sum(len(line.wrong) for line in lines.values()),
        mutants=", ".join(dict.fromkeys(e.figure for e in caught)) or "not run",
    )
    for guarantee, promise in promises.items():
        rows = [(fault, line) for (g, fault), line in lines.items() if g == guarantee]
        for number, (fault, line) in enumerate(rows):
            said = promise if number == 0 else ""
            text += (
                f"| {guarantee} | {said} | {fault} | {line.runs:,} | {line.shared:,} | {line.lost} "
                f"| {line.doubled} | {'; '.join(line.figures)} | "
                f"{line.seed} | {line.commit or commit} | {', '.join(line.versions)} |\n"
            )
        if guarantee not in proven:
            reason = (
                f"not built: {not_built[guarantee]}"
                if guarantee in not_built
                else "not in this run"
            )
            text += f"| {guarantee} | {promise} | {reason} | | | | | | | | |\n"
    rest = [
        (guarantee, fault, line)
        for (guarantee, fault), line in lines.items()
        if guarantee not in promises
    ]
    if rest:
        text += "\n## What the proof says of itself\n\n| | runs | figure |\n|---|---:|---|\n"
        text += "".join(
            f"| {fault} | {line.runs:,} | {'; '.join(line.figures)} |\n" for _, fault, line in rest
        )
    return text + faults(results) + "\n" + str(run["not_promised"])


def faults(results: list[tuple[str, Findings]]) -> str:
    """Return a table of the faults that happened."""
    times: dict[tuple[str, str], int] = defaultdict(int)
    for _, findings in results:
        for fault, (count, _) in findings.fired.items():
            times[findings.layer, fault] += count
    if not times:
        return ""
    rows = "".join(
        f"| {layer} | {fault} | {count:,} |\n" for (layer, fault), count in times.items()
    )
    return f"\n## Faults that happened\n\n| layer | fault | times |\n|---|---|---:|\n{rows}"


def non_guarantees() -> str:
    """The section of the explanation that says what is not promised, so that there is one
    wording.
    """
    text = EXPLANATION.read_text()
    return text[text.index("## Not promised") :].replace("](../", "](").rstrip() + "\n"


def broken(results: list[tuple[str, Findings]]) -> list[str]:
    """Return complaints on the code, or on the run; none if nothing is wrong."""
    said = []
    for version, findings in results:
        where = f"{findings.layer} on {version}"
        said += [f"{where}: void: {fault}" for fault in findings.void]
        for e in findings.broken:
            said.append(
                f"{where}: {e.guarantee} ({e.fault}): {e.runs} runs, {e.lost} lost, {e.doubled} "
                "doubled"
            )
            said += [f"{where}: {e.guarantee}: {line}" for line in e.wrong[:20]]
        if not findings.evidence:
            said.append(f"{where}: it shows nothing")
        said += [f"{where}: {line}" for line in counted_twice(findings)]
    return said


def counted_twice(findings: Findings) -> list[str]:
    """Lines of one layer that count the same under two promises: the same fault, as often."""
    first: dict[tuple[str, int], str] = {}
    said = []
    for e in findings.evidence:
        known = first.setdefault((e.fault, e.runs), e.guarantee)
        if known != e.guarantee and e.runs > 0:
            said.append(
                f"{known} and {e.guarantee} count the same {e.runs} runs ({e.fault}): one of them "
                "shares them"
            )
    return said
