"""Secrets of runs: programs and agents have them, and nothing that is recorded says them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from runkit import play, write

from pgflow.declare.durable.processes import Mask

if TYPE_CHECKING:
    from pgflow.testing import AsyncHarness

pytestmark = pytest.mark.timeout(60)

SECRET = "s3cr3t+\u00e9/%$x"
AGENT = "python:declared_agents:talkative"


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_TOKEN", SECRET)


def is_recorded(conn: psycopg.Connection) -> bool:
    """Return True if the secret is anywhere in the journals, inputs and results of runs."""
    said = conn.execute(
        "select coalesce(string_agg(u::text, ' '), '') from pgflow.unit u union all "
        "select coalesce(string_agg(r::text, ' '), '') from pgflow.run r"
    )
    return any(SECRET in text or SECRET[:6] in text for (text,) in said)


@pytest.mark.parametrize(
    ("node", "said"),
    [
        ('bash: printf %s "${#A_TOKEN} $A_TOKEN"', f"{len(SECRET)} ***"),
        ('bash: printf %s "${A_TOKEN:0:4}"; sleep 0.1; printf %s "${A_TOKEN:4}."', "***."),
        ("prompt: say it", "A_TOKEN=***"),
        ("prompt: a value", '{"said":["A_TOKEN=***"]}'),
    ],
)
async def test_an_output_does_not_say_a_secret(
    aflow: AsyncHarness, conn: psycopg.Connection, tmp_path: Path, node: str, said: str
) -> None:
    path = write(tmp_path, f"- id: a\n  {node}")
    run = await play(aflow, path, provider=AGENT, secrets=("A_TOKEN",))
    assert run.output == said, run
    assert not is_recorded(conn)


@pytest.mark.parametrize("node", ["bash: echo $A_TOKEN >&2; exit 1", "prompt: fail"])
async def test_an_error_does_not_say_a_secret(
    aflow: AsyncHarness, conn: psycopg.Connection, tmp_path: Path, node: str
) -> None:
    path = write(tmp_path, f"- id: a\n  {node}\n  retry: {{max_attempts: 1, delay_ms: 1000}}")
    run = await play(aflow, path, provider=AGENT, secrets=("A_TOKEN",))
    assert run.status == "failed"
    assert "***" in run.error
    assert not is_recorded(conn)


async def test_a_file_of_long_output_does_not_say_a_secret(
    aflow: AsyncHarness, tmp_path: Path
) -> None:
    script = 'yes "$A_TOKEN" | head -n 100000'
    await play(aflow, write(tmp_path, f"- {{id: a, bash: '{script}'}}"), secrets=("A_TOKEN",))
    (spill,) = tmp_path.glob(".pgflow/runs/*/spills/*")
    assert spill.read_text() == "***\n" * 100000


@pytest.mark.parametrize("node", ["bash: echo hi", "prompt: hi", "{script: print(1), runtime: uv}"])
async def test_a_worker_that_lacks_a_secret_fails_the_node_by_its_name(
    aflow: AsyncHarness, tmp_path: Path, node: str
) -> None:
    fields = node if node.startswith("{") else f"{{{node}}}"
    path = write(tmp_path, f"- {{id: a, {fields.strip('{}')}}}")
    run = await play(aflow, path, provider=AGENT, secrets=("NO_SUCH_TOKEN",))
    assert "needs the secret NO_SUCH_TOKEN" in run.error


async def test_a_program_sees_no_secret_of_another_run(aflow: AsyncHarness, tmp_path: Path) -> None:
    assert (await play(aflow, write(tmp_path, '- {id: a, bash: "echo [$A_TOKEN]"}'))).output == "[]"


def test_a_secret_in_pieces_is_the_same_as_in_one() -> None:
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


def test_each_line_of_a_secret_is_one_unless_it_is_a_word() -> None:
    mask = Mask(["-----BEGIN KEY\nMIIEpAIBAAKCAQEA\nend\n"])
    assert mask.text("a MIIEpAIBAAKCAQEA b end") == "a *** b end"
