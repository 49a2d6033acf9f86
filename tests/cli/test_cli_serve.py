"""`pgflow serve --files`: one run for each event, whoever dies, and with the text that the file has
by then.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import shutil
import signal
import urllib.request
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import forked
import psycopg
import pytest
from clikit import pgflow
from pgflow_cli.look.failures import Mistake
from pgflow_cli.ops.served.arrivals import Arrivals
from pgflow_cli.ops.served.starts import Flows, Starts
from pgflow_cli.ops.served.triggers import read_triggers
from pgflow_cli.runs.declared import FileOptions
from servers import HANG_SECONDS, wait_until

from pgflow.declare.durable import declared
from pgflow.errors import NotStorable
from pgflow.inspect import ask_async, list_schedules
from pgflow.testing import AsyncHarness

pytest.importorskip("uvicorn", reason="the extra `web` is not installed")
pytest.importorskip("tree_sitter_bash", reason="the extra `run` is not installed")

ECHO = """\
name: echo
description: Says what it was told.
inputs:
  who: {default: nobody}
nodes:
  - {id: say, bash: 'echo "first $ARGUMENTS $INPUTS_WHO"'}
"""
TRIGGERS = """\
[tick]
run = "echo"
every = "1s"
catch_up = "all"
overlap = "allow"

[pushes]
run = "echo.yaml"
webhook = "github"
secret = "HOOK_SECRET"
message = "pushed"
take = {who = "commits.0.author"}

[orders]
run = "echo.yaml"
topic = "orders"

[inbox]
run = "echo.yaml"
files = "inbox/*.md"
take = {who = "name"}
"""
SECRET = "a secret of sixteen bytes"


class Server:
    """`pgflow serve` in a process of its own."""

    def __init__(self, dsn: str, folder: Path) -> None:
        command = ["-m", "pgflow_cli", "serve", "--files", str(folder)]
        number = len(list(folder.parent.glob("log-*")))
        self.log = (folder.parent / f"log-{number}").open("w")
        self.process = forked.start(
            [*command, "--port", "0", "--look", "0.1s", "--dead-after", "1s", "--dsn", dsn],
            env={**os.environ, "HOOK_SECRET": SECRET},
            stderr=self.log,
        )

    def address(self) -> str:
        """The address of webhooks, once they come in."""

        def found() -> str:
            assert self.process.poll() is None, self.said()
            told = re.search(r"webhook pushes: (\S+)", self.said())
            return told[1] if told else ""

        return str(wait_until(found, "it serves"))

    def said(self) -> str:
        """Its log."""
        return Path(self.log.name).read_text()

    def end(self, number: int) -> int:
        """Send it a signal; the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(HANG_SECONDS)
        self.log.close()
        return code


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with a workflow and its triggers."""
    made = tmp_path / "flows"
    (made / "inbox").mkdir(parents=True)
    (made / "echo.yaml").write_text(ECHO)
    (made / "triggers.toml").write_text(TRIGGERS)
    yield made
    shutil.rmtree(made)


def post(address: str, delivery: str, payload: Any) -> int:
    """Deliver a webhook; the status of the answer."""
    body = json.dumps(payload).encode()
    signed = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    headers = {"X-Hub-Signature-256": f"sha256={signed}", "X-GitHub-Delivery": delivery}
    request = urllib.request.Request(address, body, headers)
    try:
        with urllib.request.urlopen(request, timeout=HANG_SECONDS) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def said(conn: psycopg.Connection[Any], trigger: str) -> list[str]:
    """Words of the runs of a trigger, in the order of their starts."""
    rows = conn.execute(
        "select output->>'output' from pgflow.runs where labels->>'trigger' = %s order by run_id",
        (trigger,),
    )
    return [text for (text,) in rows]


@pytest.mark.full
def test_each_event_has_one_run_though_the_server_is_killed(
    dsn: str, conn: psycopg.Connection[Any], folder: Path
) -> None:
    first = Server(dsn, folder)
    second = None
    try:
        address = first.address()
        wait_until(lambda: conn.execute("select from pgflow.relays").fetchall(), "it listens")
        push = {"commits": [{"author": "ada"}]}
        assert [post(address, "1", push), post(address, "1", push)] == [202, 202]
        assert post(address, "2", {"commits": []}) == 422
        conn.execute("select pgflow.publish('orders', '{\"n\": 1}')")
        (folder / "inbox" / "a.md").write_text("one")
        os.mkfifo(folder / "inbox" / "pipe.md")
        wait_until(lambda: "first pushed ada" in said(conn, "pushes"), "a push has its run")
        wait_until(lambda: 'first {"n": 1} nobody' in said(conn, "orders"), "an order has its run")
        wait_until(lambda: [text for text in said(conn, "inbox") if text], "a file has its run")

        (folder / "echo.yaml").write_text(ECHO.replace("first", "second"))
        assert post(address, "3", push) == 202
        wait_until(lambda: "second pushed ada" in said(conn, "pushes"), "the new text counts")
        assert first.end(signal.SIGKILL) == -signal.SIGKILL

        conn.execute("update pgflow.relay set leased_until = now()")  # as if half a minute is over
        conn.execute("select pgflow.publish('orders', '{\"n\": 2}')")
        (folder / "inbox" / "b.md").write_text("two")
        second = Server(dsn, folder)
        address = second.address()
        assert post(address, "3", push) == 202
        wait_until(lambda: 'second {"n": 2} nobody' in said(conn, "orders"), "no order is lost")
        wait_until(lambda: len([one for one in said(conn, "inbox") if one]) == 2, "nor a file")
        (folder / "inbox" / "a.md").write_text("other")
        wait_until(lambda: len([one for one in said(conn, "inbox") if one]) == 3, "it has changed")
        wait_until(lambda: "second  nobody" in said(conn, "tick"), "a slot takes the new text")
        assert second.end(signal.SIGTERM) == 0
    finally:
        for server in filter(None, (first, second)):
            server.end(signal.SIGKILL)
    assert said(conn, "pushes") == ["first pushed ada", "second pushed ada"]
    assert said(conn, "orders") == ['first {"n": 1} nobody', 'second {"n": 2} nobody']
    names = [f"inbox/{name}" for name in ("a.md", "b.md", "a.md")]
    assert [text.split()[-1] for text in said(conn, "inbox")] == names
    assert missing_slots(conn) == []


def missing_slots(conn: psycopg.Connection[Any]) -> list[datetime]:
    """Slots of the schedule between its first run and its last that have none."""
    rows = conn.execute("select key from pgflow.runs where labels->>'schedule' = 'tick'")
    slots = {datetime.fromisoformat(key.partition("/")[2]) for (key,) in rows}
    count = round((max(slots) - min(slots)).total_seconds())
    every = {min(slots) + timedelta(seconds=number) for number in range(count)}
    return sorted(every - slots)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no triggers"),
        ("[a", "is not TOML"),
        ("a = 1", "[a] is a table with run and one of cron"),
        ('["a b"]\nrun = "x"', "is not a valid name"),
        ('[a]\nrun = "x"', "it has none"),
        ('[a]\nrun = "x"\ntopic = "t"\nfiles = "*"', "it has topic and files"),
        ('[a]\ntopic = "t"', "run is a text"),
        ('[a]\nrun = "x"\ntopic = "t"\nsecret = "S"', "'secret', which is unknown"),
        ('[a]\nrun = "x"\ncron = "61 * * * *"', "61"),
        ('[a]\nrun = "x"\nevery = "soon"', "90s"),
        ('[a]\nrun = "x"\nwebhook = "gitlab"', "one of github, stripe, standard"),
        ('[a]\nrun = "x"\nwebhook = "github"', "name of a variable"),
        ('[a]\nrun = "x"\ntopic = 1', "topic is a text"),
        ('[a]\nrun = "x"\ntopic = "t"\nstart = "now"', "'oldest' or 'newest'"),
        ('[a]\nrun = "x"\nevery = "1h"\ntake = {n = "n"}', "nothing to take"),
        ('[a]\nrun = "x"\nevery = "1h"\nconversation = "{n}"', "nothing to take"),
        ('[a]\nrun = "x"\ntopic = "t"\nconversation = 1', "conversation is a text"),
        ('[a]\nrun = "x"\ntopic = "t"\ninputs = {d = 2027-01-01}', "JSON has not"),
        ('[a]\nrun = "x"\ntopic = "t"\ninputs = {d = 1}\ntake = {d = "d"}', "inputs and in take"),
    ],
)
def test_a_trigger_that_could_never_fire_is_refused(
    tmp_path: Path, text: str, complaint: str
) -> None:
    path = tmp_path / "triggers.toml"
    path.write_text(text)
    with pytest.raises(Mistake, match=re.escape(complaint)):
        read_triggers(path)


def test_what_cannot_run_is_refused_before_it_serves(
    dsn: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triggers = folder / "triggers.toml"
    refused = pgflow(dsn, "serve", "--files", str(folder), "--port", "0")
    assert refused.code == 2
    assert "variable HOOK_SECRET is not set" in refused.err
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    for said, complaint in (
        ('run = "lost"\ntopic = "t"', "has no workflow 'lost'"),
        ('run = "echo"\ntopic = "t"\ninputs = {what = 1}', "has no input 'what'"),
        ('run = "think.yaml"\ntopic = "t"', "no provider for these agents"),
    ):
        (folder / "think.yaml").write_text(
            "name: think\ndescription: d\nnodes: [{id: a, prompt: think}]"
        )
        triggers.write_text(f"[a]\n{said}")
        refused = pgflow(dsn, "serve", "--files", str(folder))
        assert (refused.code, complaint in refused.err) == (2, True), refused.err
    assert pgflow(dsn, "serve", "--files", str(folder / "lost")).code == 2
    refused = pgflow(dsn, "serve", "--files", str(folder), "--path", str(folder / "lost"))
    assert (refused.code, "--path" in refused.err) == (2, True), refused.err


def served(aflow: AsyncHarness, folder: Path, triggers: str = TRIGGERS) -> Arrivals:
    """Parts of a server that has just begun."""
    (folder / "triggers.toml").write_text(triggers)
    found = read_triggers(folder / "triggers.toml")
    if declared.name not in aflow.app.definitions.workflows:
        aflow.include(declared)
    starts = Starts(aflow.app, Flows(folder, found, FileOptions(cwd=folder)), found, None)
    return Arrivals(starts, folder, 1.0)


@pytest.mark.full
async def test_an_event_that_comes_again_has_the_run_that_it_has(
    aflow: AsyncHarness, conn: psycopg.Connection[Any], folder: Path
) -> None:
    starts = served(aflow, folder).starts
    for text in (ECHO, ECHO.replace("first", "second")):
        (folder / "echo.yaml").write_text(text)
        await starts.start(starts.triggers[2], "orders/7", {"n": 7})
    await aflow.until_idle()
    assert said(conn, "orders") == ['first {"n": 7} nobody']


async def test_the_event_names_the_conversation_of_its_run(
    aflow: AsyncHarness, folder: Path
) -> None:
    more = '[prs]\nrun = "echo.yaml"\ntopic = "prs"\nconversation = "pr-{pull.number}-{by}"\n'
    starts = served(aflow, folder, f"{TRIGGERS}{more}").starts
    trigger = next(one for one in starts.triggers if one.name == "prs")
    _, (_, settings, *_) = starts.prepare(trigger, {"pull": {"number": 7}, "by": "ada"})
    assert settings.conversation == "pr-7-ada"
    with pytest.raises(NotStorable, match="the event has no pull.number"):
        starts.prepare(trigger, {"by": "ada"})
    _, (_, settings, *_) = starts.prepare(starts.triggers[2], {"n": 7})
    assert settings.conversation == ""


async def test_a_file_that_is_being_written_waits(
    aflow: AsyncHarness, conn: psycopg.Connection[Any], folder: Path
) -> None:
    arrivals, path = served(aflow, folder), folder / "inbox" / "a.md"
    for text in ("begun", "begun, and more", "begun, and more, and done"):
        path.write_text(text)
        await arrivals.look()
    assert said(conn, "inbox") == []
    await arrivals.look()
    await arrivals.look()
    assert len(said(conn, "inbox")) == 1


@pytest.mark.full
async def test_a_file_whose_run_was_pruned_gets_no_second_one(
    aflow: AsyncHarness, conn: psycopg.Connection[Any], folder: Path
) -> None:
    (folder / "inbox" / "a.md").write_text("one")
    first = served(aflow, folder)
    await first.look()
    await first.look()
    await aflow.until_idle()
    assert said(conn, "inbox") == [f"first {folder}/inbox/a.md inbox/a.md"]
    conn.execute("select pgflow.drop_history(pgflow.now_())")
    assert said(conn, "inbox") == []
    later = served(aflow, folder)
    await later.look()
    await later.look()
    assert said(conn, "inbox") == []


async def test_an_edit_that_breaks_a_file_leaves_the_last_sound_text(
    aflow: AsyncHarness, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    arrivals = served(aflow, folder)
    flows, trigger = arrivals.starts.flows, arrivals.starts.triggers[0]
    sound = flows.arguments(trigger)["frozen"]
    (folder / "echo.yaml").write_text("name: echo")
    assert flows.arguments(trigger)["frozen"] == sound
    assert "trigger tick goes on with the text of before" in caplog.text
    (folder / "echo.yaml").write_text(ECHO.replace("first", "mended"))
    assert "mended" in flows.arguments(trigger)["frozen"].model_dump_json()


async def test_a_workflow_of_another_folder_is_found_and_watched(
    aflow: AsyncHarness, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    library = tmp_path_factory.mktemp("library")
    (library / "shared.yaml").write_text(ECHO.replace("name: echo", "name: shared"))
    (folder / "echo.yaml").write_text(
        "name: echo\ndescription: d\nnodes: [{id: all, include: shared}]"
    )
    (folder / "triggers.toml").write_text('[a]\nrun = "echo.yaml"\ntopic = "t"')
    found = read_triggers(folder / "triggers.toml")
    flows = Flows(folder, found, FileOptions(cwd=folder, search=[library]))
    assert "first" in flows.arguments(found[0])["frozen"].model_dump_json()
    (library / "shared.yaml").write_text(
        ECHO.replace("name: echo", "name: shared").replace("first", "mended")
    )
    assert "mended" in flows.arguments(found[0])["frozen"].model_dump_json()


async def test_a_schedule_that_no_trigger_has_any_more_is_removed(
    aflow: AsyncHarness, folder: Path
) -> None:
    starts = served(aflow, folder).starts
    await starts.set_schedules()
    assert [row.name for row in await ask_async(aflow.app, list_schedules())] == ["tick"]
    starts = served(aflow, folder, TRIGGERS.replace("[tick]", "[tock]")).starts
    await starts.remove_schedules(folder / "elsewhere")
    assert len(list(await ask_async(aflow.app, list_schedules()))) == 1
    await starts.remove_schedules(folder)
    assert list(await ask_async(aflow.app, list_schedules())) == []
