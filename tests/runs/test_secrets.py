"""Secrets of runs: programs and agents have them, and nothing that is recorded says them."""

from __future__ import annotations

import random

import psycopg
import pytest
from runkit import play, write

from pgflow.declare.durable import providers
from pgflow.declare.durable.processes import Mask
from pgflow.declare.durable.providers import Reply, Turn
from pgflow.declare.durable.turns import masked

SECRET = "s3cr3t+\u00e9/%$x"
LIKE = f"%{SECRET[:6]}%"
AGENT = "python:declared_agents:talkative"


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", SECRET)


def is_recorded(conn: psycopg.Connection) -> bool:
    """Return True if the secret is in any table."""
    tables = conn.execute(
        "select oid::regclass::text from pg_class where relkind = 'r' "
        "and relnamespace = 'pgflow'::regnamespace"
    ).fetchall()
    asked = " union all ".join(f"select t::text from {name} t" for (name,) in tables)
    said = conn.execute(f"select count(*) from ({asked}) s (text) where text like %s", [LIKE])
    return said.fetchone() != (0,)


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ('bash: printf %s "${#A_TOKEN} $A_TOKEN"', f"{len(SECRET)} ***"),
        ('bash: printf %s "${A_TOKEN:0:4}"; sleep 0.1; printf %s "${A_TOKEN:4}."', "***."),
        ("prompt: say it", "A_TOKEN=***"),
        ("prompt: a value", '{"said":["A_TOKEN=***"]}'),
    ],
)
async def test_an_output_does_not_say_a_secret(aflow, conn, tmp_path, node, said):
    path = write(tmp_path, f"- id: a\n  {node}")
    run = await play(aflow, path, provider=AGENT, secrets=("A_TOKEN",))
    assert run.output == said, run
    assert not is_recorded(conn)


@pytest.mark.full
@pytest.mark.parametrize("node", ["bash: echo $A_TOKEN >&2; exit 1", "prompt: fail"])
async def test_an_error_does_not_say_a_secret(aflow, conn, tmp_path, node):
    path = write(tmp_path, f"- id: a\n  {node}\n  retry: {{max_attempts: 1, delay_ms: 1000}}")
    run = await play(aflow, path, provider=AGENT, secrets=("A_TOKEN",))
    assert run.status == "failed"
    assert "***" in run.error
    assert not is_recorded(conn)


LEFT_BEHIND = """
- {id: said, bash: 'echo "$A_TOKEN"; echo "$A_TOKEN" >&2'}
- {id: coded, bash: "python3 -c 'import json, os; print(json.dumps(os.environ[\\"A_TOKEN\\"]))'"}
- {id: much, bash: 'yes "$A_TOKEN" | head -n 50000'}
- {id: reads, bash: 'printf "$much.output" | wc -c', depends_on: [much]}
- {id: spills, bash: 'yes "$A_TOKEN" | head -n 100000'}
- {id: fails, bash: 'echo "$A_TOKEN" >&2; exit 1'}
- {id: agent, prompt: "$said.output $coded.output", depends_on: [said, coded]}
- {id: works, workflow: kid, depends_on: [agent]}
"""


@pytest.mark.full
async def test_nothing_that_a_run_leaves_behind_says_a_secret(aflow, conn, tmp_path, caplog):
    caplog.set_level("DEBUG")
    write(tmp_path, "- {id: a, prompt: fail}", name="kid")
    run = await play(aflow, write(tmp_path, LEFT_BEHIND), provider=AGENT, secrets=("A_TOKEN",))
    bad = {name for name, state in run.states.items() if state == "failed"}
    assert bad == {"fails", "works"}, run
    files = [path for path in tmp_path.glob(".pgflow/runs/*/**/*") if path.is_file()]
    assert {path.parent.name for path in files} >= {"values", "spills"}
    assert not [path for path in files if SECRET[:6].encode() in path.read_bytes()]
    assert SECRET[:6] not in caplog.text
    assert not is_recorded(conn)


class Rude:
    """Fails in a way that no provider should."""

    honours: frozenset[str] = frozenset()

    def __init__(self, argument: str) -> None:
        self.error = {"os": ConnectionError, "key": KeyError}[argument]

    async def take(self, turn: Turn) -> Reply:
        raise self.error(f"https://{turn.env['A_TOKEN']}@host")


@pytest.mark.parametrize("kind", ["os", "key"])
async def test_an_error_that_a_provider_lets_out_does_not_say_a_secret(
    aflow, conn, tmp_path, monkeypatch, kind
):
    monkeypatch.setitem(providers._OWN, "rude", Rude)
    path = write(tmp_path, "- {id: a, prompt: x, retry: {max_attempts: 1, delay_ms: 1000}}")
    run = await play(aflow, path, provider=f"rude:{kind}", secrets=("A_TOKEN",))
    assert "https://***@host" in run.error
    assert not is_recorded(conn)


async def test_a_secret_that_is_too_long_for_a_variable_is_not_written_to_a_file(
    aflow, tmp_path, monkeypatch
):
    monkeypatch.setenv("A_TOKEN", "0123456789" * 11_000)
    run = await play(aflow, write(tmp_path, "- {id: a, bash: echo}"), secrets=("A_TOKEN",))
    assert "cannot be given the secret A_TOKEN: it is too long" in run.error
    assert not list(tmp_path.glob(".pgflow/runs/*/values/*"))


@pytest.mark.full
async def test_a_file_of_long_output_does_not_say_a_secret(aflow, tmp_path):
    script = 'yes "$A_TOKEN" | head -n 100000'
    await play(aflow, write(tmp_path, f"- {{id: a, bash: '{script}'}}"), secrets=("A_TOKEN",))
    said = {spill.read_text() for spill in tmp_path.glob(".pgflow/runs/*/spills/*")}
    assert {text.strip() for text in said} == {("***\n" * 100000).strip()}


@pytest.mark.parametrize("node", ["bash: echo hi", "prompt: hi", "{script: print(1), runtime: uv}"])
async def test_a_worker_that_lacks_a_secret_fails_the_node_by_its_name(aflow, tmp_path, node):
    fields = node if node.startswith("{") else f"{{{node}}}"
    path = write(tmp_path, f"- {{id: a, {fields.strip('{}')}}}")
    run = await play(aflow, path, provider=AGENT, secrets=("NO_SUCH_TOKEN",))
    assert "needs the secret NO_SUCH_TOKEN" in run.error


@pytest.mark.full
async def test_a_program_sees_no_secret_of_another_run(aflow, tmp_path):
    assert (await play(aflow, write(tmp_path, '- {id: a, bash: "echo [$A_TOKEN]"}'))).output == "[]"


def test_a_secret_in_pieces_is_the_same_as_in_one():
    chance = random.Random(1)
    for _ in range(3000):
        letters = "ab" if chance.random() < 0.5 else "abc"
        secrets = ["".join(chance.choices("ab", k=chance.randint(1, 5))) for _ in range(2)]
        text = "".join(chance.choices(letters, k=chance.randint(0, 20)))
        mask, said, at = Mask(secrets), b"", 0
        while at < len(text):
            end = at + chance.randint(1, 5)
            said += mask.put(text[at:end].encode())
            at = end
        assert said + mask.rest() == Mask(secrets).text(text).encode(), (secrets, text)


def test_each_line_of_a_secret_is_one_unless_it_is_a_word():
    mask = Mask(["-----BEGIN KEY\nMIIEpAIBAAKCAQEA\nend\n"])
    assert mask.text("a MIIEpAIBAAKCAQEA b end") == "a *** b end"


def test_a_number_that_is_a_secret_is_one_in_a_value_too():
    said = masked(Reply("4711 4711", {"pin": 4711, "n": 47}), ("4711",))
    assert (said.text, said.value) == ("*** ***", {"pin": "***", "n": 47})


def test_a_secret_is_found_in_json():
    assert Mask(['a"b\\c\u00e9']).text(r'["a\"b\\c\u00e9", "a\"b\\cé"]') == '["***", "***"]'
