"""Durable runs of declared workflows: what a file says is done, once."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest
from records import recover
from runkit import MARK, ended, play, start, write
from servers import wait_until

from pgflow import InvalidArgument
from pgflow._model.kinds import Kind
from pgflow.authority import Approve, Reject
from pgflow.declare import parse_workflow
from pgflow.declare.durable import freeze
from pgflow.declare.durable.providers import make_provider
from pgflow.declare.durable.questions import Question

pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")

TESTS = Path(__file__).parents[1] / "corpus/dag/head/archon/workflows/test-workflows"
EVIL = f"'\"$(touch {MARK})`touch {MARK}`\n\\ ${{HOME}} end"
AGENT = "python:declared_agents:answer"


def steps(conn: psycopg.Connection) -> list[str]:
    """Names of the steps, in the order in which they were asked for."""
    asked = conn.execute(
        "select step from pgflow.steps where step <> 'pgflow.folder' order by run_id, call"
    )
    return [name for (name,) in asked]


async def test_outputs_reach_the_nodes_after_them(aflow, tmp_path):
    path = write(
        tmp_path,
        """
        - id: first
          bash: echo "said $ARGUMENTS"
        - id: second
          bash: printf %s "got $first.output"
          depends_on: [first]
        """,
    )
    run = await play(aflow, path, "a 'b' $(c)")
    assert run.status == "completed", run
    assert run.output == "got said a 'b' $(c)"
    assert run.states == {"first": "completed", "second": "completed"}


@pytest.mark.parametrize("script", ["printf %s $first.output", "cat <<'X'\n$first.output\nX"])
async def test_a_value_arrives_in_a_shell_byte_for_byte_and_nothing_runs(aflow, tmp_path, script):
    path = write(
        tmp_path,
        f"""
        - id: first
          prompt: "$ARGUMENTS"
        - id: second
          bash: {json.dumps(script)}
          depends_on: [first]
        """,
    )
    run = await play(aflow, path, EVIL, provider=AGENT)
    assert run.output.removesuffix("\n") == EVIL, run
    assert not MARK.exists()


@pytest.mark.parametrize("size", [100_000, 200_000])
async def test_a_value_too_long_for_an_environment_arrives_whole(aflow, tmp_path, size):
    path = write(
        tmp_path,
        f"""
        - id: first
          bash: head -c {size} /dev/zero | tr '\\0' x; echo; echo; echo
        - id: second
          bash: printf %s "$first.output" | wc -c
          depends_on: [first]
        """,
    )
    assert (await play(aflow, path)).output.strip() == str(size + 2)


@pytest.mark.full
@pytest.mark.parametrize(
    ("runtime", "script"),
    [
        ("uv", 'import sys; print(len($first.output), len("$first.output"), len(sys.argv))'),
        ("bun", "console.log(($first.output).length, `$first.output`.length, 1)"),
    ],
)
async def test_a_value_too_long_for_an_argument_is_in_programs_too(
    aflow, tmp_path, runtime, script
):
    if runtime == "bun" and shutil.which("bun") is None and shutil.which("node") is None:
        pytest.skip("needs bun or node")
    path = write(
        tmp_path,
        f"""
        - id: first
          bash: head -c 300000 /dev/zero | tr '\\0' x
        - id: second
          script: {json.dumps(script)}
          runtime: {runtime}
          depends_on: [first]
        """,
    )
    assert (await play(aflow, path)).output.split() == ["300000", "300000", "1"]


async def test_a_message_too_long_for_a_variable_is_a_file_for_programs(aflow, tmp_path):
    script = (
        "import os; print('ARGUMENTS' in os.environ, "
        "len(open(os.environ['ARGUMENTS_FILE']).read()), os.environ['PGFLOW_NODE'])"
    )
    path = write(tmp_path, f"- {{id: first, runtime: uv, script: {json.dumps(script)}}}")
    assert (await play(aflow, path, "x" * 150_000)).output.split() == ["False", "150000", "first"]


async def test_bash_evaluates_nothing_but_numbers(aflow, tmp_path):
    nodes = """
    - id: first
      prompt: "$ARGUMENTS"
    - id: second
      bash: "[[ $first.output -gt 3 ]] && echo $(( $first.output + 1 ))"
      depends_on: [first]
    """
    path = write(tmp_path, nodes)
    assert (await play(aflow, path, "41", provider=AGENT)).output == "42"
    run = await play(aflow, path, f"a[$(touch {MARK})]", provider=AGENT)
    assert "takes $first.output for a number" in run.error
    assert not MARK.exists()


async def test_values_are_literals_in_programs(aflow, tmp_path):
    path = write(
        tmp_path,
        """
        - id: first
          prompt: "$ARGUMENTS"
        - id: second
          script: 'import json; print(json.dumps([$first.output, "x $first.output"]))'
          runtime: uv
          depends_on: [first]
        """,
    )
    run = await play(aflow, path, EVIL, provider=AGENT)
    assert json.loads(run.output) == [EVIL, f"x {EVIL}"], run


async def test_a_node_that_fails_says_why_and_skips_what_rests_on_it(aflow, tmp_path):
    path = write(
        tmp_path,
        """
        - id: bad
          bash: echo sorry >&2; exit 3
        - id: after
          bash: echo no
          depends_on: [bad]
        - id: anyway
          bash: echo yes
          depends_on: [bad]
          trigger_rule: all_done
        """,
    )
    run = await play(aflow, path)
    assert run.status == "failed"
    assert "node 'bad' failed: bash node 'bad' failed [exit 3]: sorry" in run.error
    assert run.states == {"bad": "failed", "after": "skipped", "anyway": "completed"}


@pytest.mark.full
async def test_a_timeout_ends_a_node(aflow, tmp_path):
    path = write(tmp_path, "- {id: slow, bash: sleep 600, timeout: 200}")
    assert "timed out after 200ms" in (await play(aflow, path)).error


async def test_a_retry_is_a_step_of_its_own_after_a_durable_wait(aflow, conn, tmp_path):
    path = write(
        tmp_path,
        """
        - id: flaky
          bash: test -e ok || { touch ok; echo 'HTTP 503' >&2; exit 1; }; echo fine
          retry: {max_attempts: 2, delay_ms: 60000}
        """,
    )
    run = await start(aflow, path)
    due = await aflow.until_idle()
    assert due is not None
    assert await run.status() == "waiting"
    await aflow.skip(timedelta(seconds=61))
    assert (await ended(run)).output == "fine"
    assert steps(conn) == ["flaky", "flaky~2"]


async def test_a_loop_goes_on_until_its_signal(aflow, conn, tmp_path):
    path = write(
        tmp_path,
        """
        - id: refine
          loop: {prompt: "round $LOOP_PREV_OUTPUT", until: DONE, max_iterations: 5}
        """,
    )
    run = await play(aflow, path, provider=AGENT)
    assert run.status == "completed", run
    assert steps(conn) == ["refine#1", "refine#2", "refine#3"]


async def test_a_group_is_done_again_until_its_check_passes(aflow, conn, tmp_path):
    path = write(
        tmp_path,
        """
        - id: group
          loop_group:
            max_iterations: 5
            until_bash: test $(wc -l < count) -ge 3
            nodes:
              - id: tick
                bash: echo x >> count; wc -l < count
        """,
    )
    run = await play(aflow, path)
    assert run.output.strip() == "3"
    assert steps(conn) == [
        "group#1/tick",
        "group#1:until",
        "group#2/tick",
        "group#2:until",
        "group#3/tick",
        "group#3:until",
    ]


async def test_a_condition_in_a_group_reads_the_round_before(aflow, tmp_path):
    path = write(
        tmp_path,
        """
        - id: group
          loop_group:
            max_iterations: 3
            until_bash: test $(wc -l < count) -ge 3
            nodes:
              - {id: check, bash: 'echo x >> count; test $(wc -l < count) = 1 && echo red || echo green'}
              - {id: mend, bash: echo mended >> count, when: "$LOOP_PREV.check.output == 'red'"}
        """,
    )
    run = await play(aflow, path)
    ended = [(end["id"], end["state"], end["iteration"]) for end in run.ends if end["id"] == "mend"]
    assert ended == [("mend", "skipped", 1), ("mend", "completed", 2)], run
    assert sorted((tmp_path / "count").read_text().split()) == ["mended", "x", "x"]


async def test_a_person_is_asked_about_the_text_and_their_words_are_the_output(aflow, tmp_path):
    path = write(
        tmp_path,
        """
        - id: plan
          bash: echo "three steps"
        - id: ask
          approval: {message: "Do $plan.output?", capture_response: true}
          depends_on: [plan]
        - id: tell
          bash: echo "they said $ask.output"
          depends_on: [ask]
        """,
        more="interactive: true",
    )
    run = await start(aflow, path)
    await aflow.until_idle()
    (gate,) = await aflow.gates()
    assert gate.request["message"] == "Do three steps?"  # type: ignore[index]
    await aflow.answer(gate, Approve(edit=Question(response="only two").model_dump()))
    assert (await ended(run)).output == "they said only two"


@pytest.mark.full
async def test_a_rejection_ends_an_archon_run_and_fails_an_ion_node(aflow, tmp_path):
    path = write(
        tmp_path,
        """
        - id: ask
          approval: {message: "Go?"}
        - id: after
          bash: echo went on
          depends_on: [ask]
          trigger_rule: all_done
        """,
        more="interactive: true",
    )
    runs = [await start(aflow, path, dialect=dialect) for dialect in ("archon", "ion")]
    await aflow.until_idle()
    for gate in await aflow.gates():
        await aflow.answer(gate, Reject("too dear"))
    archon, ion = [await ended(run) for run in runs]
    assert (archon.status, archon.states) == ("cancelled", {"ask": "completed"})
    assert "too dear" in archon.error
    assert (ion.status, ion.states) == ("failed", {"ask": "failed", "after": "completed"})


@pytest.mark.full
async def test_what_is_rejected_is_worked_on_and_asked_again(aflow, conn, tmp_path):
    path = write(
        tmp_path,
        """
        - id: ask
          approval:
            message: "Go?"
            on_reject: {prompt: "Mind this: $REJECTION_REASON", max_attempts: 3}
        """,
        more="interactive: true",
    )
    run = await start(aflow, path, provider=AGENT)
    await aflow.until_idle()
    await aflow.answer("ask", Reject("be quick"))
    await aflow.answer("ask#2", Approve())
    assert (await ended(run)).status == "completed"
    assert steps(conn) == ["ask:rework#1"]


@pytest.mark.full
async def test_a_cancel_node_ends_the_run_with_its_reason(aflow, tmp_path):
    path = write(
        tmp_path,
        """
        - id: look
          bash: echo nothing to do
        - id: stop
          cancel: "We stop: $look.output"
          depends_on: [look]
        - id: after
          bash: echo no
          depends_on: [stop]
        """,
    )
    run = await play(aflow, path)
    assert run.status == "cancelled"
    assert "We stop: nothing to do" in run.error
    assert "after" not in run.states


async def test_an_answer_that_does_not_fit_is_asked_for_again(aflow, conn, tmp_path):
    pytest.importorskip("jsonschema", reason="the extra `run` is not installed")
    path = write(
        tmp_path,
        """
        - id: judge
          prompt: Is it fine?
          output_format: {type: object, properties: {ok: {type: boolean}}, required: [ok]}
        - id: go
          bash: echo "it is $judge.output.ok"
          depends_on: [judge]
          when: "$judge.output.ok == 'true'"
        """,
    )
    run = await play(aflow, path, provider="python:declared_agents:clumsy")
    assert run.output == "it is true", run
    assert steps(conn) == ["judge", "judge:reask#1", "go"]


async def test_a_command_takes_a_prompt_on_its_standard_input(aflow, tmp_path):
    path = write(tmp_path, '- {id: shout, prompt: "hello $ARGUMENTS"}')
    run = await play(aflow, path, "'you'", provider="cmd:tr a-z A-Z")
    assert run.output == "HELLO 'YOU'"


@pytest.mark.full
async def test_a_run_reads_its_files_as_they_were_at_its_start(aflow, tmp_path):
    tree = tmp_path / "workflows"
    (tmp_path / "commands").mkdir()
    tree.mkdir()
    command = tmp_path / "commands" / "greet.md"
    command.write_text("Greet $ARGUMENTS")
    nodes = """
    - id: wait
      approval: {message: "Go?"}
    - id: greet
      command: greet
      depends_on: [wait]
    """
    path = write(tree, nodes, more="interactive: true")
    run = await start(aflow, path, "Ada", provider=AGENT)
    command.write_text("Insult $ARGUMENTS")
    path.write_text("nonsense")
    await aflow.until_idle()
    await aflow.answer("wait", Approve())
    assert (await ended(run)).output == "Greet Ada"


async def test_programs_see_no_more_of_the_environment_than_is_allowed(
    aflow, tmp_path, monkeypatch
):
    monkeypatch.setenv("PGFLOW_DSN", "postgresql://secret")
    monkeypatch.setenv("HIDDEN", "1")
    monkeypatch.setenv("SHOWN", "2")
    path = write(tmp_path, '- {id: look, bash: "echo $PGFLOW_DSN,$HIDDEN,$SHOWN,$HOME"}')
    run = await play(aflow, path, env=("SHOWN",))
    assert run.output == f",,2,{os.environ['HOME']}"


@pytest.mark.full
async def test_the_originals_own_checks_pass(aflow, tmp_path):
    joins = await play(aflow, TESTS / "e2e-joins.yaml", cwd=str(tmp_path))
    assert joins.output == "ALL JOINS OK (loop ran 3 iterations)", joins
    all_done = await play(aflow, TESTS / "e2e-fanout-alldone.yaml", cwd=str(tmp_path))
    assert all_done.output.endswith("ALL_DONE AGGREGATED A FAILED CHILD OK"), all_done
    all_success = await play(aflow, TESTS / "e2e-fanout-allsuccess.yaml", cwd=str(tmp_path))
    assert all_success.status == "failed"
    assert all_success.states == {"spread": "failed", "report": "skipped"}


async def test_the_originals_own_scripts_are_found_beside_its_workflows(aflow, tmp_path):
    tree, scripts = tmp_path / "workflows", tmp_path / "scripts"
    tree.mkdir()
    scripts.mkdir()
    path = tree / "e2e-deterministic.yaml"
    path.write_text((TESTS / "e2e-deterministic.yaml").read_text())
    (scripts / "echo-args.js").write_text("console.log('from javascript')")
    (scripts / "echo-py.py").write_text("print('from python')")
    run = await play(aflow, path, cwd=str(tmp_path))
    assert run.status == "completed", run
    assert run.output == "PASS: all deterministic nodes produced output" or (
        "output received" in run.output
    )


@pytest.mark.parametrize("spec", ["nonesuch:x", "cmd:", "python:json", "python:json:nonesuch"])
def test_a_provider_that_is_not_there_is_refused(spec):
    with pytest.raises(InvalidArgument):
        make_provider(spec)


def test_a_script_without_references_is_frozen_as_it_is(tmp_path):
    frozen = freeze(parse_workflow(write(tmp_path, "- {id: a, bash: 'echo \"$HOME\"'}")))
    assert frozen.shells == {}


async def test_an_external_node_is_an_effect_that_is_done_once(aflow, conn, tmp_path):
    path = write(tmp_path, '- {id: publish, bash: "echo x >> acts; echo out", effect: external}')
    assert (await play(aflow, path)).output == "out"
    found = conn.execute("select name, status, risk from pgflow.effects").fetchall()
    assert found == [("publish", "confirmed", "irreversible")]
    assert (tmp_path / "acts").read_text() == "x\n"


@pytest.mark.full
async def test_a_person_settles_an_external_node_of_which_nobody_knows(aflow, conn, tmp_path):
    path = write(
        tmp_path,
        """
        - {id: publish, bash: "echo x >> acts; sleep 60", effect: external, timeout: 300}
        - {id: tell, bash: "echo it is $publish.output", depends_on: [publish]}
        """,
    )
    run = await start(aflow, path)
    await aflow.until_idle()
    assert await run.status() == "stuck"
    (key,) = conn.execute("select effect from pgflow.effects").fetchone() or ()
    await aflow.app.settle_effect(key, "confirmed", {"text": "out"}, by="ada")
    await aflow.until_idle()
    assert (await ended(run)).output == "it is out"
    assert (tmp_path / "acts").read_text() == "x\n"


@pytest.mark.full
async def test_an_external_node_is_not_done_again_after_a_crash(aflow, conn, tmp_path):
    script = "test -e acts; again=$?; echo x >> acts; test $again = 0 || sleep 60"
    path = write(tmp_path, f'- {{id: publish, bash: "{script}", effect: external}}')
    run = await start(aflow, path)
    await asyncio.to_thread(wait_until, (tmp_path / "acts").exists, "it acts")
    await recover(aflow)
    assert await run.status() == "stuck"
    (key,) = conn.execute("select effect from pgflow.effects").fetchone() or ()
    await aflow.app.settle_effect(key, "failed", by="ada")
    await aflow.until_idle()
    assert (await ended(run)).states == {"publish": "failed"}
    assert (tmp_path / "acts").read_text() == "x\n"


NODES = """
- {id: first, bash: "echo x >> first; echo one"}
- {id: second, bash: "echo x >> second; test -e mended && echo two", depends_on: [first]}
- {id: third, bash: "echo x >> third; echo $second.output", depends_on: [second]}
"""


def counts(folder: Path) -> dict[str, int]:
    """Number of times that each of those nodes was done."""
    files = [folder / name for name in ("first", "second", "third")]
    return {file.name: file.read_text().count("x") for file in files if file.exists()}


@pytest.mark.full
async def test_a_retry_does_the_failed_node_again_and_no_other(aflow, tmp_path):
    run = await start(aflow, write(tmp_path, NODES), key="again")
    await aflow.until_idle()
    found = (await ended(run)).states
    assert found == {"first": "completed", "second": "failed", "third": "skipped"}
    (tmp_path / "mended").touch()
    await aflow.app.retry("again")
    await aflow.until_idle()
    assert (await ended(run)).output == "two"
    assert counts(tmp_path) == {"first": 1, "second": 2, "third": 1}


@pytest.mark.full
async def test_a_retry_takes_a_failed_turn_again_and_no_other(aflow, conn, tmp_path):
    path = write(
        tmp_path,
        """
        - {id: first, prompt: one}
        - {id: second, prompt: two, depends_on: [first]}
        """,
    )
    agent = "python:declared_agents:moody"
    run = await start(aflow, path, key="again", provider=agent, lease="share")
    await aflow.until_idle()
    failed = await ended(run)
    assert failed.states == {"first": "completed", "second": "failed"}
    assert "node 'second' failed: ValueError: not now" in failed.error
    (tmp_path / "mended").touch()
    await aflow.app.retry("again")
    await aflow.until_idle()
    assert (await ended(run)).output == "two"
    found = (tmp_path / "witness").read_text().split("\n")
    assert found == ["first begins", "second begins", "second begins", ""]


@pytest.mark.full
async def test_a_run_without_the_evidence_that_it_owes_fails_until_there_is_some(aflow, tmp_path):
    path = write(tmp_path, "- {id: a, bash: echo done}", more="evidence_policy: {required: true}")
    run = await start(aflow, path, key="owes")
    await aflow.until_idle()
    assert "evidence_policy: there is no" in (await ended(run)).error
    (tmp_path / ".pgflow/runs/owes/artifacts/evidence.json").write_text("{}")
    await aflow.app.retry("owes")
    await aflow.until_idle()
    assert (await ended(run)).output == "done"


@pytest.mark.parametrize(("ok", "outcome"), [(True, "succeeded"), (False, "failed")])
async def test_a_run_that_completes_may_say_that_its_work_has_failed(aflow, tmp_path, ok, outcome):
    path = write(
        tmp_path,
        """
        - id: judge
          prompt: Is it fine?
          output_format: {type: object, properties: {ok: {type: boolean}}, required: [ok]}
        """,
        more="returns: judge\noutcome_field: ok",
    )
    run = await start(aflow, path, provider="stub:", stubs={"judge": {"ok": ok}})
    await aflow.until_idle()
    assert (await run.result()).outcome == outcome


async def test_a_node_whose_output_is_given_waits_for_no_folder_and_no_commit(
    aflow, conn, tmp_path
):
    nodes = "- {id: a, bash: exit 1}\n- {id: b, bash: exit 1, depends_on: [a]}"
    run = await start(aflow, write(tmp_path, nodes), stubs={"a": 1, "b": 2})
    await aflow.until_idle()
    assert (await run.result()).output == "2"
    kinds = [kind for (kind,) in conn.execute("select kind from pgflow.unit")]
    assert kinds.count(Kind.STEP_COMPLETED) == 2
    assert not {Kind.STEP_STARTED, Kind.LOCK_ASKED, Kind.LOCK_WON} & {*kinds}


@pytest.mark.full
async def test_a_pool_that_is_used_up_admits_no_further_turn(aflow, conn, tmp_path):
    nodes = "\n".join(
        f"- {{id: n{n}, prompt: go, depends_on: [{needs}]}}"
        for n, needs in enumerate(["", "n0", "n1", "n2"])
    )
    run = await play(
        aflow, write(tmp_path, nodes), provider="python:declared_agents:paid", budget={"usd": 1}
    )
    assert "budget exceeded" in run.error
    assert run.states == {"n0": "completed", "n1": "completed", "n2": "completed", "n3": "failed"}
    charged = conn.execute("select sum(usd) from pgflow.charges").fetchone()
    assert charged is not None
    assert float(charged[0]) == 1.2


async def test_the_most_that_a_turn_may_cost_is_reserved_before_it(aflow, tmp_path):
    nodes = """
    - {id: first, prompt: go, maxBudgetUsd: 0.7}
    - {id: second, prompt: go, maxBudgetUsd: 0.7, depends_on: [first]}
    """
    run = await play(
        aflow, write(tmp_path, nodes), provider="python:declared_agents:paid", budget={"usd": 1}
    )
    assert run.states == {"first": "completed", "second": "failed"}
    assert (tmp_path / "witness").read_text() == "first begins\n"


@pytest.mark.full
async def test_outputs_of_a_type_are_files_named_by_their_rounds(aflow, tmp_path):
    nodes = """
    - {id: plan, bash: echo one, output_type: plan}
    - id: twice
      depends_on: [plan]
      loop_group:
        max_iterations: 2
        until: DONE
        nodes: [{id: inner, bash: "test -e m && echo DONE || touch m", output_type: note}]
    - id: turns
      output_type: end
      loop: {prompt: DONE, until: DONE, max_iterations: 3}
    """
    assert (await play(aflow, write(tmp_path, nodes), provider="cmd:cat")).status == "completed"
    (folder,) = tmp_path.glob(".pgflow/runs/*/artifacts/nodes")
    said = {path.name: path.read_text() for path in folder.glob("*.md")}
    assert said == {
        "plan.md": "one",
        "twice%231%2finner.md": "",
        "twice%232%2finner.md": "DONE",
        "turns.md": "DONE",
    }
    about = json.loads((folder / "plan.meta.json").read_text())
    assert about.items() >= {"outputType": "plan", "path": "nodes/plan.md", "size": 3}.items()


@pytest.mark.full
async def test_an_agent_is_seen_at_work_and_nothing_of_it_is_kept(aflow, tmp_path):
    path = write(tmp_path, "- {id: think, prompt: x}")
    command = "cmd:sh -c 'echo one; until test -e seen; do sleep 0.02; done; echo two'"
    run = await start(aflow, path, provider=command)
    working = asyncio.ensure_future(aflow.until_idle())
    words = run.stream("agents", live=True)
    assert (await anext(words))["type"] == "start"
    found = await anext(words)
    assert found == {"id": "think", "step": "think", "type": "assistant", "content": "one"}
    (tmp_path / "seen").touch()
    await working
    async for word in words:
        assert word["content"] == "two"
    assert (await ended(run)).output == "one\ntwo\n"
    assert [word async for word in run.stream("agents", live=True)] == []
