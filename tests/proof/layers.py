"""The layers of the proof: what each is, and how much of it is played.

How much is a count, which each layer names: kills, transactions, rounds. A machine that is slow
plays the same as a fast one, for longer.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET  # what is read is what pytest wrote
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from evidence import Evidence, Findings

REPOSITORY = Path(__file__).parents[2]


HANG_SECONDS = 1800.0
"""Seconds after which a layer hangs, for each time its full amount of 45 minutes."""


class Layer(NamedTuple):
    """One layer. ``module`` has the function ``prove``."""

    name: str
    module: str
    what: str
    unit: str
    """Unit of the amounts."""
    full: int
    """Amount in a full proof of 45 minutes."""
    gate: int | None = None
    """Amount in the gate; None: it is no part of it."""
    grows: bool = True
    """True if a longer proof plays more of it."""
    at_any_level: bool = False
    """True if all of it goes through the engine, so that it can be played where another isolation
    level is the default.
    """

    def amount(self, minutes: float | None) -> int:
        """Return the amount in a proof of so many minutes; None: in the gate."""
        if minutes is None:
            assert self.gate is not None, self.name
            return self.gate
        return max(self.gate or 1, round(self.full * minutes / 45)) if self.grows else self.full


LAYERS = (
    # the longest first: two are played at a time
    Layer("mutants", "mutants", "broken variants, each of which a test must catch", "seconds", 1500,
        grows=False),
    Layer("isolation", "isolationkit", "every pair of calls that can meet, in every order",
        "seconds", 150, gate=150, grows=False),
    Layer("wirecut", "wirecut", "the connection cut around every message",
        "percent of the messages", 100, gate=30, at_any_level=True),
    Layer("simulator", "simulator", "seeded interleavings of real transactions against a model",
        "transactions", 30_000, gate=8_000),
    Layer("campaigns", "campaigns", "real workers under one fault at a time", "rounds", 1,
        at_any_level=True),
    Layer("plans", "plans", "plans of the hot statements over a million runs", "seconds", 100,
        grows=False),
    Layer("commits", "commitfaults", "COMMIT itself refused, with each SQLSTATE, on every path",
        "refusals on each path", 40, gate=8, at_any_level=True),
    Layer("programs", "programs", "random workflows under kills against a plain interpreter",
        "lots of 60", 4, gate=1, at_any_level=True),
    Layer("sql programs", "flowprograms",
        "random workflows in SQL under kills, forks and rewinds against a plain interpreter",
        "programs", 1000),
    Layer("crashes", "crashes", "kill -9 at named points", "kills at each point", 20, gate=3,
        at_any_level=True),
    Layer("surroundings", "surroundings",
        "programs and crashes behind a pooler, and by roles with settings of their own",
        "surroundings", 16),
    Layer("effects", "effectcrashes", "kill -9 around effects, with a witness outside that counts",
        "kills at each point", 10, gate=2, at_any_level=True),
    Layer("upgrades", "upgrades", "recorded versions upgraded under work", "seconds", 45,
        grows=False),
    Layer("failover", "failover", "a primary killed or frozen, its standby promoted", "rounds", 4),
    Layer("tests", "proof.named_tests", "tests of the suite that put one promise to the test",
        "hearing of each", 1, grows=False),
)  # fmt: skip


def run_here(name: str, server_dsn: str, amount: int, seed: int) -> Findings:
    """Runs one layer in this process."""
    layer = next(layer for layer in LAYERS if layer.name == name)
    started = time.monotonic()
    findings: Findings = importlib.import_module(layer.module).prove(server_dsn, amount, seed)
    findings.layer = name
    findings.seconds = time.monotonic() - started
    return findings


class Job:
    """One layer on one server, in a process of its own: some fork, some have threads, and one that
    hangs stops nothing else.
    """

    def __init__(self, layer: Layer, version: str, server_dsn: str, amount: int, seed: int) -> None:
        self.layer = layer
        self.version = version
        self._seed = seed
        # The only bound on a time: nobody waits for ever.
        self._deadline = time.monotonic() + HANG_SECONDS * max(1.0, amount / layer.full)
        self._output = tempfile.NamedTemporaryFile("w+", suffix=".json")  # noqa: SIM115  closed with the job
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        command = [
            sys.executable,
            "-m",
            "tests.proof",
            "--layer",
            layer.name,
            "--amount",
            str(amount),
            "--seed",
            str(seed),
        ]
        self._process = subprocess.Popen(
            [*command, "--json", self._output.name],
            cwd=REPOSITORY,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
            env={**os.environ, "PGFLOW_TEST_DSN": server_dsn},
        )

    def is_over(self) -> bool:
        """Return True if it has ended; end it if it hangs."""
        if self._process.poll() is None and time.monotonic() > self._deadline:
            os.killpg(self._process.pid, 9)
            self._process.wait()
        return self._process.poll() is not None

    def findings(self) -> Findings:
        """Return its findings; if it came to no end of its own, a finding of that."""
        with self._output, self._log:
            text = Path(self._output.name).read_text()
            if self._process.returncode == 0 and text:
                return read_findings(text)
            self._log.seek(0)
            last = self._log.read()[-3000:]
        wrong = f"the layer ended with {self._process.returncode}: {last}"
        evidence = [Evidence("-", self.layer.what, 1, wrong=(wrong,))]
        return Findings(self.layer.name, self._seed, evidence)

    def stop(self) -> None:
        """Ends it and all that it started."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
            self._process.wait()


def write_findings(findings: Findings) -> str:
    """As one process tells another."""
    return json.dumps(asdict(findings))


def read_findings(text: str) -> Findings:
    """The reverse of `write_findings`."""
    data = json.loads(text)
    evidence = [Evidence(**{**e, "wrong": tuple(e["wrong"])}) for e in data.pop("evidence")]
    fired = {fault: (times, minimum) for fault, (times, minimum) in data.pop("fired").items()}
    return Findings(evidence=evidence, fired=fired, **data)


def run_tests(paths: list[str], server_dsn: str) -> tuple[list[str], list[str]]:
    """Runs tests of the suite: the names of those that passed, and of those that did not."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "0",
            "-m",
            "",
            "-p",
            "no:cacheprovider",
            f"--junitxml={report}",
            *paths,
        ]
        env = {**os.environ, "PGFLOW_TEST_DSN": server_dsn}
        done = subprocess.run(
            command, cwd=REPOSITORY, env=env, capture_output=True, text=True, check=False
        )
        assert report.exists(), done.stdout[-2000:] + done.stderr[-2000:]
        cases = list(ET.parse(report).getroot().iter("testcase"))  # noqa: S314
    failed = [
        _name(c) for c in cases if c.find("failure") is not None or c.find("error") is not None
    ]
    passed = [
        _name(c)
        for c in cases
        if all(c.find(tag) is None for tag in ("failure", "error", "skipped"))
    ]
    return passed, failed


def _name(case: ET.Element) -> str:
    return f"{case.get('classname')}::{case.get('name')}"
