"""Mails to approvers are sent once, though the worker dies between the mail and its commit."""

from __future__ import annotations

import json
from datetime import timedelta

import notify_jobs
import psycopg
import pytest
import servers
from processes import one, worker
from servers import HANG_SECONDS, wait_until

from pgflow.testing import set_clock


@pytest.mark.full
@pytest.mark.parametrize(
    ("workflow", "sendings"),
    # A step is made again under the same key, by which a mail service knows it; an effect whose
    # outcome is unknown is asked after instead.
    [("told_by_step", 2), ("told_by_effect", 1), ("told_by_policy", 1)],
)
def test_a_worker_that_dies_behind_the_mail_sends_no_second_one(
    workflow, sendings, conn, pgflow_dsn
):
    conn.execute(notify_jobs.OUTBOX)
    conn.execute("select pgflow.set_policy(%s, 'x')", (json.dumps([{"name": "pay"}]),))
    with psycopg.connect(servers.witness(pgflow_dsn), autocommit=True) as look:
        with worker(pgflow_dsn, module="notify_jobs") as first:
            first.registered()
            look.execute("select pgflow.start_run(%s, '{}'::json, 'k')", (workflow,))
            assert first.process.wait(HANG_SECONDS) == -9
        assert one(look, "select count(*) from app.mail") == 1
        (gate,) = look.execute("select gate from pgflow.gates").fetchall()[0]  # asked before told
        set_clock(pgflow_dsn, timedelta(minutes=3))  # no mail is under way any more
        with worker(pgflow_dsn, module="notify_jobs"):
            told = """
              select exists (select from pgflow.steps where step = 'mail_by_step' and status = 'completed')
                or exists (select from pgflow.effects where name = 'mail_by_effect' and status = 'confirmed')
            """
            wait_until(lambda: one(look, told), "it is known what became of the mail")
            look.execute("select pgflow.answer_gate(%s, 'reject', by => 'ann')", (gate,))
            done = "select key from pgflow.runs where key = 'k' and status = 'completed'"
            wait_until(lambda: look.execute(done).fetchall(), "the run ends")
        found = look.execute("select count(*), count(distinct key) from app.mail").fetchall()
        assert found == [(sendings, 1)]
        assert one(look, "select count(*) from pgflow.gate_answers") == 1
