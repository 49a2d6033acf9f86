"""What an export has beside journals: contents of large values, and the same facts as Parquet."""

from __future__ import annotations

import io
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from clikit import pgflow
from pydantic import SecretStr
from records import SOON
from sqlkit import begin, claim_one, commit, finish, flush, one, rows, start, unit

from pgflow import App, InvalidArgument, step, workflow
from pgflow._model.blobs import CHUNK_BYTES, Blob
from pgflow.blobs import Blobs
from pgflow.extensions import Keyring
from pgflow.replay.contents import Contents
from pgflow.replay.histories import export_chain, import_lines

if TYPE_CHECKING:
    from pathlib import Path

Conn = psycopg.Connection[Any]
SIZES = (0, 1, CHUNK_BYTES, 2 * CHUNK_BYTES + 5)


def content_of(size: int) -> bytes:
    return bytes(range(251)) * (size // 251) + bytes(size % 251)


def named(blob: Blob) -> str:
    return json.dumps({"pgflow": "blob", "digest": blob.digest, "size_bytes": blob.size_bytes})


def run_with_blobs(conn: Conn, key: str, tenant: str = "") -> list[Blob]:
    """A run that names a blob of each size, in its input and its journal, and has ended."""
    with conn.transaction():
        kept = [Blobs(conn, tenant=tenant).store(content_of(size)) for size in SIZES]
        start(conn, key=key, tenant=tenant, input=f'{{"doc": {named(kept[0])}}}')
        run = claim_one(conn)
        units = [unit("c", call, payload=named(blob)) for call, blob in enumerate(kept, 1)]
        commit(conn, flush(run, *units))
    finish(conn, run)
    return kept


def moved(conn: Conn, dsn: str, path: Path) -> None:
    """Import a file in place of what is here."""
    one(conn, "select runs from pgflow.drop_history(pgflow.now_())")
    assert rows(conn, "select key from pgflow.runs") == []
    assert one(conn, "select count(*) from pgflow.blob") == 0
    said = pgflow(dsn, "import", str(path))
    assert said.code == 0, said.err


def test_contents_go_with_the_runs_that_name_them(dsn, conn, tmp_path):
    path = tmp_path / "runs.jsonl"
    operator = f"{dsn}?options=-crole%3Dpgflow_operator"
    kept = run_with_blobs(conn, "a")
    run_with_blobs(conn, "b")
    theirs = run_with_blobs(conn, "c", tenant="acme")
    assert pgflow(operator, "export", "--all", "--blobs", "--output", str(path)).code == 0
    lines = path.read_text().splitlines()
    chunks = 2 * (1 + 1 + 1 + 3)  # once for each tenant, however many runs name them
    assert len(lines) == chunks + 3
    moved(conn, operator, path)
    with conn.transaction():
        for blobs, tenant in ((kept, ""), (theirs, "acme")):
            found = [Blobs(conn, tenant=tenant).read_all(blob) for blob in blobs]
            assert found == [content_of(size) for size in SIZES]
    assert rows(conn, "select detail from pgflow.check()") == []
    said = pgflow(None, "replay", "clikit", "--from-files", str(path))
    assert "chunk" not in said.err


def test_an_export_of_ended_runs_brings_contents_too(dsn, conn, tmp_path):
    path, cursor = tmp_path / "runs.jsonl", str(tmp_path / "cursor")
    words = ("export", "--since-last", cursor, "--output", str(path), "--blobs")
    for key in ("a", "b"):  # contents are there each time that a run names them
        run_with_blobs(conn, key)
        assert pgflow(dsn, *words).code == 0
    moved(conn, dsn, path)
    assert one(conn, "select count(*) from pgflow.blob") == len(SIZES)


DAMAGES = {
    "comes before the end": lambda lines: [*lines[:-2], lines[-1]],
    "without those before": lambda lines: [*lines[:3], *lines[4:]],
    "is damaged": lambda lines: [*lines[:-2], lines[-2].replace("AA", "AB", 1), lines[-1]],
    "not a chunk": lambda lines: [lines[0].replace('"data"', '"date"'), *lines[1:]],
}


@pytest.mark.parametrize("refusal", DAMAGES)
def test_a_damaged_content_is_refused_with_all_else(conn, refusal):
    run_with_blobs(conn, "a")
    out = io.StringIO()
    [chain] = rows(conn, "select chain_id from pgflow.run")
    export_chain(conn, chain, out, Contents())
    lines = DAMAGES[refusal](out.getvalue().splitlines())
    one(conn, "select runs from pgflow.drop_history(pgflow.now_())")
    with pytest.raises(InvalidArgument, match=refusal):
        import_lines(conn, ((f"line {n}", line) for n, line in enumerate(lines, 1)))
    assert one(conn, "select count(*) from pgflow.blob") == 0
    assert one(conn, "select count(*) from pgflow.run") == 0


@step
def greet(name: str) -> str:
    return f"hello {name}"


@step
def keep(secret: SecretStr) -> SecretStr:
    return secret


@workflow
def greets(name: str) -> str:
    return greet(name)


@workflow
def keeps(secret: SecretStr) -> SecretStr:
    return keep(secret)


def read(path: Path) -> list[dict[str, Any]]:
    pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    return pq.read_table(path).to_pylist()


def test_a_row_has_a_run_with_its_journal(dsn, conn, tmp_path):
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    path = tmp_path / "runs.parquet"
    with App(dsn, include=[greets]) as app, app.worker():
        app.start(greets.options(key="a", labels={"team": "x"}), "ann").result(SOON)
    begin(conn, key="open")
    said = pgflow(dsn, "export", "--all", "--format", "parquet", "--output", str(path))
    assert said.code == 0, said.err
    first, second = read(path)
    facts = ("key", "workflow", "status", "input", "output", "labels", "generation", "tenant")
    assert [first[name] for name in facts] == [
        "a", "greets", "completed", '{"name":"ann"}', '"hello ann"', '{"team": "x"}', 1, "",
    ]  # fmt: skip
    ended = one(conn, "select finished_at from pgflow.outcome")
    assert (first["ended_at"], second["ended_at"]) == (ended, None)
    assert (second["key"], second["status"], second["units"]) == ("open", "running", [])
    [done] = [one for one in first["units"] if one["kind"] == "step_completed"]
    assert (done["call"], done["name"], done["payload"]) == (1, "greet", '"hello ann"')
    assert done["recorded_at"] == one(conn, "select recorded_at from pgflow.unit where kind = 'c'")
    assert {entry.name for entry in tmp_path.iterdir()} == {"runs.parquet"}


def test_a_large_export_is_written_in_groups(dsn, conn, tmp_path, monkeypatch):
    pq = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow")
    monkeypatch.setattr("pgflow.replay.parquet.GROUP_BYTES", 2000)
    path = tmp_path / "runs.parquet"
    for number in range(20):
        begin(conn, key=f"r{number:02}")
    words = ("export", "--all", "--format", "parquet", "--output", str(path))
    assert pgflow(dsn, *words).code == 0
    assert pq.ParquetFile(path).num_row_groups > 3
    assert [row["key"] for row in read(path)] == [f"r{number:02}" for number in range(20)]


def test_a_folder_gets_a_file_with_each_export_of_ended_runs(dsn, conn, tmp_path):
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    folder, cursor = tmp_path / "runs", tmp_path / "cursor"
    words = ("export", "--since-last", str(cursor), "--output", str(folder), "--format", "parquet")
    for key in ("a", "b"):
        finish(conn, begin(conn, key=key))
        before = cursor.read_text() if cursor.exists() else ""
        assert pgflow(dsn, *words).code == 0
    # A kill before the cursor was written: the next export writes the same file.
    cursor.write_text(before)
    finish(conn, begin(conn, key="c"))
    assert pgflow(dsn, *words).code == 0
    assert sorted(entry.name for entry in folder.iterdir()) == ["000001.parquet", "000002.parquet"]
    assert sorted(row["key"] for row in read(folder)) == ["a", "b", "c"]
    said = pgflow(dsn, *words[:5])
    assert (said.code, said.err.strip()) == (
        2, f"pgflow: {cursor} is the cursor of an export with another --format",
    )  # fmt: skip


def test_what_a_codec_has_encoded_stays_encoded(dsn, tmp_path):
    pytest.importorskip("pyarrow", reason="needs pyarrow")
    ring = Keyring({"k": os.urandom(32)}, "k", hash_key=os.urandom(16))
    with App(dsn, include=[keeps], codec=ring) as app, app.worker():
        run = app.start(keeps.options(key="a"), SecretStr("canary-4711"))
        assert run.result(SOON).get_secret_value() == "canary-4711"
    lines, table = tmp_path / "runs.jsonl", tmp_path / "runs.parquet"
    assert pgflow(dsn, "export", "a", "--output", str(lines)).code == 0
    assert pgflow(dsn, "export", "a", "--output", str(table), "--format", "parquet").code == 0
    [row] = read(table)
    assert row["input"] == json.loads(lines.read_text())["input"]
    for text in (lines.read_text(), str(row)):
        assert "$wrap" in text
        assert "canary-4711" not in text


def test_one_line_says_what_is_missing(dsn, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pgflow.replay.parquet", raising=False)
    path = tmp_path / "runs.parquet"
    said = pgflow(dsn, "export", "--all", "--format", "parquet", "--output", str(path))
    assert said.code == 2
    assert said.err == 'pgflow: this needs pyarrow: pip install "pgflow-engine[parquet]"\n'
    assert not path.exists()


@pytest.mark.parametrize(
    "words",
    [("--all",), ("--all", "--decisions", "--output", "x"), ("--all", "--blobs", "--output", "x")],
)
def test_parquet_is_a_file_of_runs(dsn, words):
    said = pgflow(dsn, "export", "--format", "parquet", *words)
    assert said.code == 2
    assert "--format parquet takes --output, and neither --decisions nor --blobs" in said.err
