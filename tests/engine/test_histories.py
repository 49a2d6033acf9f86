"""Recorded runs as text: exported, imported elsewhere as history, and replayed from files against
the code at hand.
"""

from __future__ import annotations

import json
import sys
import textwrap
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import changedcode
import exampleflows
import ledgerflows
import psycopg
import pytest
import servers
from clikit import pgflow, prepare, statuses
from exampleflows import EXAMPLES, charged_child, each_example
from ledgerflows import LEDGERS
from records import launch, result_of, settle

from pgflow import InvalidArgument, step, workflow
from pgflow.errors import NonDeterminismError
from pgflow.replay.check import find_divergence
from pgflow.replay.histories import read_database, read_history

if TYPE_CHECKING:
    from collections.abc import Iterator

GOLDENS = Path(__file__).parents[1] / "histories"


@pytest.fixture(scope="module")
def full(server_dsn: str, template: str) -> Iterator[str]:
    """A database with runs in every status."""
    name = servers.create_database(server_dsn, template)
    prepare(servers.dsn_of(server_dsn, name))
    yield servers.dsn_of(server_dsn, name)
    servers.drop_database(server_dsn, name)


@pytest.fixture(scope="module")
def exported(full: str) -> str:
    """All of its runs as text."""
    answer = pgflow(full, "export", "--all")
    assert answer.code == 0, answer.err
    return answer.out


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def import_text(dsn: str, text: str, tmp_path: Path) -> Any:
    file = tmp_path / "runs.jsonl"
    file.write_text(text)
    return pgflow(dsn, "import", str(file))


def test_there_is_a_history_of_every_example_and_of_every_kind_of_unit(db):
    found = {path.stem for path in GOLDENS.glob("*.jsonl")}
    assert found == {example.name for example in [*EXAMPLES, *LEDGERS]}
    kinds = {
        unit[2]
        for path in GOLDENS.glob("*.jsonl")
        for history in lines(path.read_text())
        for unit in history["units"]
    }
    rows = db.execute("select kind::text from pgflow.unit_kind").fetchall()
    # A licence rides with another unit where there is one, and compensations are effects: nothing
    # writes R yet.
    assert kinds >= {kind for (kind,) in rows} - {"s", "R"}


def test_the_code_repeats_every_history_that_is_checked_in(replay_histories):
    assert replay_histories(
        GOLDENS, exampleflows, ledgerflows, errors=[exampleflows.Declined]
    ) >= len(EXAMPLES) + len(LEDGERS)


@pytest.mark.parametrize("name", [example.name for example in [*EXAMPLES, *LEDGERS]])
def test_other_code_does_not(name, replay_histories):
    @workflow(name=name)
    async def other(n: int, total: int = 0) -> None:
        await exampleflows.clean_up("something else")

    with pytest.raises(NonDeterminismError, match=f"{name}.*(journal|completed|failed)"):
        replay_histories(GOLDENS / f"{name}.jsonl", other, ignore_unknown=True)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # changed code leaves coroutines unawaited
@pytest.mark.parametrize("one_of", [4, pytest.param(1, marks=pytest.mark.full)])
@each_example()
def test_nor_does_a_changed_copy_of_the_code(example, replay_histories, one_of):
    diverged, found = [], changedcode.changes(example.workflow.fn.__name__)
    kinds = dict.fromkeys(change.kind for change in found)
    for change in chain(*([c for c in found if c.kind == kind][::one_of] for kind in kinds)):
        flow = changedcode.load(change).BY_NAME[example.name].workflow
        try:
            replay_histories(
                GOLDENS / f"{example.name}.jsonl",
                flow,
                errors=[exampleflows.Declined],
                ignore_unknown=True,
            )
        except NonDeterminismError:
            diverged.append(change)
    assert {change.kind for change in diverged} >= {"insert"}


@pytest.mark.full
def test_a_line_holds_one_run_with_its_exact_text(full, exported):
    histories = {(line["key"], line["generation"]): line for line in lines(exported)}
    with psycopg.connect(full) as conn:
        rows = conn.execute(
            "select key, input::text, output::text, status from pgflow.runs"
        ).fetchall()
        for key, given, output, status in rows:
            history = max(item for item in histories.items() if item[0][0] == key)[1]
            assert (history["input"], history["output"], history["status"]) == (
                given,
                output,
                status,
            )
        units = conn.execute(
            "select key, generation, count(*) from pgflow.timeline group by 1, 2"
        ).fetchall()
    assert {
        (key, generation): len(history["units"])
        for (key, generation), history in histories.items()
        if history["units"]
    } == {(key, generation): count for key, generation, count in units}


def test_runs_are_chosen_by_key_or_option_and_children_go_along(full):
    found = [h["key"] for h in lines(pgflow(full, "export", "hello-1", "order-1").out)]
    assert found == ["hello-1", "order-1"]
    found = {h["workflow"] for h in lines(pgflow(full, "export", "--workflow", "greet").out)}
    assert found == {"greet"}
    alone, kin = (
        lines(pgflow(full, "export", "family-1", *more).out) for more in ([], ["--children"])
    )
    assert len(alone) == 1
    assert len(kin) > 1
    assert all(h["parent"]["root"] == kin[0]["root"] for h in kin[1:])


@pytest.mark.full
def test_an_import_is_the_same_history_which_nothing_can_run(exported, dsn, conn, tmp_path):
    answer = import_text(dsn, exported, tmp_path)
    assert answer.code == 0, answer.err
    assert answer.data == {"imported": len(lines(exported))}
    assert set(statuses(conn).values()) <= {"completed", "failed", "cancelled"}
    row = conn.execute("select reason, reason_code from pgflow.runs where key = 'nap-1'").fetchone()
    assert row == ("imported while waiting", "imported")
    for verb in ("pause_run", "cancel_run"):
        conn.execute(f"select pgflow.{verb}('order-2', 'test')")
    conn.execute("select pgflow.wake()")
    assert conn.execute("select count(*) from pgflow.ready").fetchone() == (0,)

    again = pgflow(dsn, "export", "--all").out
    ours = {"run_id", "exported_us"}

    def essence(text: str) -> list[dict[str, Any]]:
        found = [
            {name: value for name, value in line.items() if name not in ours}
            for line in lines(text)
        ]
        for line in found:
            line["parent"] = line["parent"] and {**line["parent"], "run_id": None}
            line["reason"] = None
        return sorted(found, key=lambda line: (line["root"], line["generation"]))

    assert essence(again) == essence(exported)
    assert pgflow(dsn, "replay", "cli_jobs").code == 0


@pytest.mark.full
def test_a_long_journal_goes_in_pages_and_comes_back_whole(dsn, conn, tmp_path, monkeypatch):
    golden = json.loads((GOLDENS / "in_sequence.jsonl").read_text().splitlines()[0])
    unit = golden["units"][0]
    golden["units"] = [
        [n, n, "v", None, json.dumps({"text": "x" * 900, "n": n}), None, *unit[6:9], 7, None, None]
        for n in range(1, 5001)
    ]
    assert import_text(dsn, json.dumps(golden), tmp_path).code == 0
    back = lines(pgflow(dsn, "export", "--all").out)
    assert back[0]["units"] == golden["units"]


@pytest.mark.full
async def test_an_open_effect_of_an_imported_run_is_history_and_owed_by_nobody_here(
    aflow, conn, empty_dsn, tmp_path
):
    await launch(
        aflow, ledgerflows.asking_a_person.options(key="open"), 1, beside=[ledgerflows.ordering]
    )
    await settle(aflow, ledgerflows.ordering.options(key="accepted"), 500)
    for _ in range(5):
        await aflow.skip(timedelta(minutes=5))
    assert conn.execute("select count(*) from pgflow.obligations").fetchone() == (2,)
    text = pgflow(aflow.app.dsn, "export", "--all").out
    servers.install_schema(empty_dsn)
    assert import_text(empty_dsn, text, tmp_path).code == 0
    with psycopg.connect(empty_dsn, autocommit=True) as there:
        assert there.execute("select invariant, detail from pgflow.check()").fetchall() == []
        assert there.execute("select count(*) from pgflow.obligations").fetchone() == (0,)
        query = "select r.key, name, effect, status, attempts from pgflow.effects r order by 1, 3"
        assert there.execute(query).fetchall() == conn.execute(query).fetchall()
    found = [line["units"] for line in lines(pgflow(empty_dsn, "export", "--all").out)]
    assert found == [line["units"] for line in lines(text)]
    key = conn.execute("select effect from pgflow.obligations where state = 'unknown'").fetchone()
    conn.execute("select pgflow.settle_effect(%s, 'confirmed', '\"seen\"')", key)
    conn.execute("select pgflow.confirm_effect('number of later')")
    await aflow.until_idle()


def test_a_run_or_key_that_is_there_refuses_the_file_in_one_line_and_leaves_nothing(
    exported, dsn, conn, tmp_path
):
    conn.execute("select pgflow.start_run('greet', '{}', 'hello-1')")
    answer = import_text(dsn, exported, tmp_path)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "the key 'hello-1' already names a run of this database" in answer.err
    assert statuses(conn) == {"hello-1": "queued"}


@pytest.mark.parametrize("depth", [2_000, 200_000])
def test_a_history_that_is_nested_deeply_is_refused_in_one_line(exported, dsn, tmp_path, depth):
    nested = "[" * depth + "]" * depth
    for name, value in (("labels", nested), ("input", json.dumps(nested))):
        file = tmp_path / f"{name}.jsonl"
        history = {**json.loads(exported.splitlines()[0]), name: "HERE"}
        file.write_text(json.dumps(history).replace('"HERE"', value))
        answer = pgflow(dsn, "import", str(file))
        assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1), answer.err
        assert f"{name}.jsonl, line 1" in answer.err


def test_what_was_imported_is_not_imported_again(exported, dsn, tmp_path):
    assert import_text(dsn, exported, tmp_path).code == 0
    answer = import_text(dsn, exported, tmp_path)
    assert answer.code == 2
    assert "was imported before" in answer.err
    assert "runs.jsonl, line 1" in answer.err


def golden_with(**changes: Any) -> str:
    return json.dumps(
        json.loads((GOLDENS / "in_sequence.jsonl").read_text().splitlines()[0]) | changes
    )


@pytest.mark.parametrize(("line", "said"), [
    ("{", "line 1 is not JSON"),
    ('{"a": 1}', "is not a history of a run"),
    (golden_with(pgflow_history=2), "of format 2, this version reads format 1"),
    (golden_with(units=[[2, 1, "c", None, None, None, 0, None, 0, 1, None, None]]), "not numbered from 1"),
    (golden_with(units=[[1, 1, "?", None, None, None, 0, None, 0, 1, None, None]]), "kind '\\?', which this version does not know"),
    (golden_with(units=[[n, 1, "v", None, None, None, 0, None, 0, 1, None, None] for n in (1, 2)]), "call 1 ended 2 times"),
    (golden_with(ended_us=1), "goes on after the end of the run"),
    (golden_with(status="sleeping"), "the status 'sleeping', which is none"),
    (golden_with(input="[]"), "must be an object"),
    (golden_with(input="{"), "cannot be stored"),
    (golden_with(status="failed"), "cannot be stored"),
    (golden_with(key=""), "lacks its key"),
    (golden_with(generation=2), "comes without the one before it"),
    (golden_with(status="continued"), "goes on as generation 2, which is missing"),
])  # fmt: skip
def test_what_is_no_history_is_refused_in_one_line(line, said, dsn, conn, tmp_path):
    answer = import_text(dsn, line, tmp_path)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert said.replace("\\", "") in answer.err
    assert statuses(conn) == {}


def test_only_an_operator_imports(exported, conn):
    line = exported.splitlines()[0]
    for role in ("pgflow_client", "pgflow_worker", "pgflow_auditor"):
        with pytest.raises(psycopg.errors.InsufficientPrivilege), conn.transaction():
            conn.execute(f"set local role {role}")
            conn.execute("select pgflow.import_run(%s::json)", (line,))
    with conn.transaction():
        conn.execute("set local role pgflow_operator")
        conn.execute("select pgflow.import_run(%s::json)", (line,))


def test_old_imports_are_removed_with_the_rest_of_the_history(exported, dsn, conn, tmp_path):
    import_text(dsn, exported, tmp_path)
    assert pgflow(dsn, "prune", "--older-than", "0s", "--yes").code == 0
    assert conn.execute("select count(*) from pgflow.imported").fetchone() == (0,)


@pytest.mark.parametrize(("arguments", "said"), [
    (["export"], "which runs?"),
    (["export", "a", "--all"], "which runs?"),
    (["export", "nobody"], "no run has the key 'nobody'"),
    (["export", "--all", "-o", "/nowhere/x"], "/nowhere/x cannot be written"),
    (["import", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
    (["replay", "cli_jobs", "-f", "nowhere"], "file nowhere does not exist"),
    (["replay", "cli_jobs", "-f", str(GOLDENS), "--sample", "2"], "leave out options that choose"),
    (["replay", "cli_jobs", "-f", str(GOLDENS / "in_sequence.jsonl")], "none of a workflow of cli_jobs"),
])  # fmt: skip
def test_a_mistake_is_one_line(arguments, said, dsn):
    answer = pgflow(dsn, *arguments)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert said in answer.err


def test_a_terminal_is_not_filled(dsn):
    assert "pass --output" in pgflow(dsn, "export", "--all", tty=True).err


def test_the_runs_of_a_database_are_replayed_and_not_changed(full, exported):
    answer = pgflow(full, "replay", "cli_jobs", tty=True)
    assert answer.code == 0, answer.err
    assert "repeated" in answer.err
    found = [line["units"] for line in lines(pgflow(full, "export", "--all").out)]
    assert found == [line["units"] for line in lines(exported)]


def test_a_sample_takes_open_runs_first(full):
    answer = pgflow(full, "replay", "cli_jobs", "--sample", "1", "--json")
    verdicts = {line["workflow"]: line for line in lines(answer.out)}
    assert verdicts["checkout"]["key"] == "order-2"
    assert {line["verdict"] for line in verdicts.values()} == {"repeats"}
    assert [
        line["key"]
        for line in lines(pgflow(full, "replay", "cli_jobs", "--key", "order-1", "--json").out)
    ] == ["order-1"]


CHANGED = """
from cli_jobs import Order
import pgflow

@pgflow.step
async def weigh(item: str) -> int:
    return 1

@pgflow.workflow
async def checkout(order: Order) -> str:
    await weigh(order.sku)  # the line that is shown
    return "done"
"""


def test_a_divergence_shows_both_sides_and_the_source_line_and_fails(full, tmp_path, monkeypatch):
    source = tmp_path / "changed_jobs.py"
    source.write_text(textwrap.dedent(CHANGED))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    file = tmp_path / "runs.jsonl"
    assert pgflow(full, "export", "--all", "-o", str(file)).code == 0
    for asked in ([], ["-f", str(tmp_path)]):
        answer = pgflow(full if not asked else None, "replay", str(source), *asked, "--json")
        assert answer.code == 1, answer.err
        diverged = [line for line in lines(answer.out) if line["verdict"] == "diverges"]
        assert {line["key"] for line in diverged} == {"order-1", "order-2"}
        line = (
            CHANGED.splitlines().index("    await weigh(order.sku)  # the line that is shown") + 1
        )
        for found in diverged:
            assert found["where"] == [f"{source}:{line} in checkout"]
            assert [row[0] for row in found["diff"][-2:]] == ["-", "+"]
            assert "weigh" in found["diff"][-1]
        got = answer.err
        assert f"::error file={source},line={line},title=run order-1 of checkout diverges::" in got
    sys.modules.pop("changed_jobs", None)
    shown = pgflow(None, "replay", str(source), "-f", str(file), tty=True)
    assert "diverges run 'order-1' (checkout)" in shown.out
    assert "2 diverged" in shown.err


async def test_both_sides_of_a_divergence_are_told_apart_whatever_a_key_says(aflow, conn):
    """The key holds what stands between the sides in the message."""

    @workflow(name="two_sided")
    async def recorded() -> None:
        await declined("a: b, the code c")

    @step(name="declined")
    async def declined(word: str) -> str:
        return word

    @step
    async def accepted(word: str) -> str:
        return word

    @workflow(name="two_sided")
    async def changed() -> None:
        await accepted("a: b, the code c")

    await result_of(aflow, recorded.options(key="k: l, the code m"))
    ((chain,),) = conn.execute("select chain_id from pgflow.run_key").fetchall()
    found = find_divergence(next(read_database(conn, [chain])), changed)
    assert found is not None
    assert found.message.startswith("run 'k: l, the code m' (two_sided): the journal has ")
    journal, code = found.diff[-2:]
    assert journal.startswith("- the journal has ")
    assert "'declined'" in journal
    assert code.startswith("+ the code asks for ")
    assert "accepted" in code


def test_an_unknown_format_is_refused_by_the_reader_too():
    with pytest.raises(InvalidArgument, match="is of format 9"):
        read_history(golden_with(pgflow_history=9))


def test_a_history_of_another_workflow_is_not_passed_over_in_silence(replay_histories):
    with pytest.raises(InvalidArgument, match="holds runs of in_sequence"):
        replay_histories(GOLDENS / "in_sequence.jsonl", charged_child)
