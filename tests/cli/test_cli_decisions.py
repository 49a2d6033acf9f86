"""`pgflow export --decisions`: a line for each decision, with what became of it, and nothing that
may not be read.
"""

from __future__ import annotations

import asyncio
import json
import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
import servers
from clikit import pgflow
from psycopg.conninfo import make_conninfo

from pgflow import AsyncApp, step, workflow
from pgflow.decisions import Choice, decision

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@dataclass
class Zipped:
    """A codec of which the database sees no word."""

    key_id: str | None = "zlib"
    hash_key: bytes | None = None

    def encode(self, data: bytes) -> bytes:
        return zlib.compress(data)

    def decode(self, key_id: str, data: bytes) -> bytes:
        del key_id
        return zlib.decompress(data)


@decision()
def judge(what: str) -> Choice[str]:
    return Choice(f"bought {what}", why="it is dark", evidence=["meter-3"], model="m-1")


@step
def pay(what: str) -> str:
    return f"paid for {what}"


@workflow
def judging(times: int) -> None:
    for n in range(times):
        chosen = judge(f"lamp-{n}")
        pay.because(chosen)(chosen.value)


async def _judge(dsn: str) -> None:
    for codec, runs in ((None, {"plain-1": 2, "plain-2": 1}), (Zipped(), {"zip-1": 1})):
        async with AsyncApp(dsn, include=[judging], codec=codec) as app, app.worker():
            for key, times in runs.items():
                handle = await app.start(judging.options(key=key, labels={"of": key}), times)
                await handle.result()


@pytest.fixture(scope="module")
def judged(server_dsn: str, template: str) -> Iterator[str]:
    """A database with runs that decided: in clear, encoded, and redacted since."""
    name = servers.create_database(server_dsn, template)
    dsn = servers.dsn_of(server_dsn, name)
    asyncio.run(_judge(dsn))
    with psycopg.connect(dsn, autocommit=True) as conn:
        conn.execute(
            "select pgflow.redact('plain-2', d.seq, 'by letter') from pgflow.decisions d where key = 'plain-2'"
        )
    yield dsn
    servers.drop_database(server_dsn, name)


def export(dsn: str, *options: str) -> list[dict[str, Any]]:
    answer = pgflow(dsn, "export", "--decisions", *options)
    assert answer.code == 0, answer.err
    return [json.loads(line) for line in answer.out.splitlines()]


@pytest.mark.full
def test_a_line_is_a_decision_with_its_reasons_and_what_rests_on_it(
    judged: str, tmp_path: Path
) -> None:
    file = tmp_path / "decisions.jsonl"
    answer = pgflow(judged, "export", "plain-1", "--decisions", "-o", str(file))
    assert (answer.out, answer.err) == ("", "2 decisions exported\n")
    first, second = map(json.loads, file.read_text().splitlines())
    assert [line["value"] for line in (first, second)] == ["bought lamp-0", "bought lamp-1"]
    assert (first["key"], first["status"], first["workflow"]) == ("plain-1", "completed", "judging")
    assert (first["why"], first["evidence"], first["model"]) == ("it is dark", ["meter-3"], "m-1")
    assert [(act["kind"], act["name"], act["status"]) for act in first["acts"]] == [
        ("step", "pay", "completed")
    ]
    assert first["acts"][0]["key"].startswith(first["decision"] + "/")


@pytest.mark.full
def test_what_is_encoded_or_redacted_stays_so(judged: str) -> None:
    text = pgflow(judged, "export", "--decisions", "--all").out
    lines = {line["key"]: line for line in map(json.loads, text.splitlines())}
    assert [lines[key]["hidden"] for key in ("plain-1", "plain-2", "zip-1")] == [
        None,
        "redacted",
        "encoded",
    ]
    for key in ("plain-2", "zip-1"):
        assert {lines[key][name] for name in ("value", "why", "evidence")} == {None}
        assert lines[key]["model"] == "m-1"
    assert "paid for" not in text  # of acts there are names and codes


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        (["zip-1", "plain-2"], ["plain-2", "zip-1"]),
        (["--label", "of=zip-1"], ["zip-1"]),
        (["--workflow", "judging", "--key", "plain-*"], ["plain-1", "plain-1", "plain-2"]),
        (["--since", "1h"], ["plain-1", "plain-1", "plain-2", "zip-1"]),
        (["--until", "1h"], []),
    ],
)
def test_runs_are_chosen_by_key_label_workflow_and_time(
    judged: str, options: list[str], keys: list[str]
) -> None:
    assert [line["key"] for line in export(judged, *options)] == keys


def test_pages_leave_nothing_out(judged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = export(judged, "--all")
    monkeypatch.setattr("pgflow_cli.ops.transfer.AT_ONCE", 1)
    assert export(judged, "--all") == whole
    assert export(judged, "plain-1", "zip-1", "plain-1") == [whole[0], whole[1], whole[3]]


def test_whoever_may_only_read_exports_decisions(judged: str) -> None:
    as_auditor = make_conninfo(judged, options="-c role=pgflow_auditor")
    assert len(export(as_auditor, "--all")) == 4


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["plain-1", "--children"], "--decisions takes neither --children nor --blobs"),
        ([], "which runs?"),
        (["nobody"], "no run has the key 'nobody'"),
    ],
)
def test_what_cannot_be_exported_is_one_clear_line(
    judged: str, options: list[str], says: str
) -> None:
    answer = pgflow(judged, "export", "--decisions", *options)
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert re.search(re.escape(says), answer.err)
