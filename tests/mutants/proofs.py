"""The layer `mutants` of the proof: as many mutants, drawn by its seed, as it has time for.

Survivors are findings for people, in the report and the figure. They break no proof, since no draw
of places says anything of the commit that a proof is made of; only a test that fails on sound code,
or did not run, does.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path

from tests.kits.evidence import Evidence, Findings

from . import places, traces, trials
from .reports import Report

FOLDER = Path(__file__).parents[2] / "build" / "mutants"
RECORD = FOLDER / "record"

SECONDS_OF_ONE = 10.0
"""Seconds that a mutant takes on average with two at a time."""

FEWEST = 10
"""Number of mutants that are tried however little time there is."""


def prove(server_dsn: str, seconds: float, seed: int) -> Findings:
    """Return the findings of this layer. What the default tier enters is recorded first."""
    began = time.monotonic()
    shutil.rmtree(RECORD, ignore_errors=True)
    traces.record(RECORD, "default", (), server_dsn)
    found = places.find_all()
    report = Report(seed, len(found))
    left_seconds = seconds - (time.monotonic() - began)
    drawn = places.draw(found, seed, max(FEWEST, int(left_seconds / SECONDS_OF_ONE)))
    for trial in trials.try_all(drawn, traces.read(RECORD), server_dsn):
        report.add(trial)
    report.write(FOLDER)
    evidence = Evidence(
        "mutants",
        "one place of the source changed, which a test must notice",
        len(report.trials),
        wrong=tuple(sorted({name for trial in report.trials for name in trial.unsound})),
        figure=report.figure,
    )
    fired = {"mutants tried": (len(report.trials), len(drawn) // 2)}
    return Findings("mutants", seed, [evidence], fired, time.monotonic() - began)
