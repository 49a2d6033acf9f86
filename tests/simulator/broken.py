"""Broken variants of the stored functions: what the simulator must catch, to be believed when it
finds nothing.

`python -m tests.simulator --broken NAME` plays with one; each is a change of the functions of the
simulation's database only.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.simulator.database import Change


class Variant(NamedTuple):
    """Broken variant of some functions."""

    what: str
    changes: tuple[Change, ...]


BROKEN: dict[str, Variant] = {
    "lock without its key": Variant("who decides about a lock does not have its key alone",
        (Change("try_key_", "pg_try_advisory_xact_lock(pgflow.latch_('lock ' || key))", "true"),)),
    "unfenced batch": Variant("commit_units compares no tokens",
        (Change("commit_units", "  if careful or not are_ours then", "  if careful then"),)),
    "unfenced step": Variant("fence_step compares no tokens",
        (Change("fence_step", "  if held_token is distinct from token then", "  if false then"),
            Change("fence_step", "where e.run_id = run_id and e.token = token for",
                "where e.run_id = run_id for"))),
    "unfenced unit verdict": Variant("the careful path believes whoever finds the lease locked",
        (Change("verdict_", "  if is_locked and held_token = p_token then", "  if is_locked then"),
            Change("bad_runs_", " and e.token = any(array(select a.token from asked a))\n", "\n"))),
    "acknowledgement forgotten": Variant("the careful path does not know its own units again",
        (Change("verdict_", "  if next_token = p_token then", "  if false then"),)),
    "no careful path": Variant("a batch that is sent again is inserted plainly",
        (Change("commit_units", "  if careful or not are_ours then", "  if not are_ours then"),)),
    "park without a nudge kept": Variant("wake deletes every nudge that it saw, whatever it found",
        (Change("wake",
            "  where n.chain_id = g.chain and n.nudge_id = g.id and g.chain <> all(keep);",
            "  where n.chain_id = g.chain and n.nudge_id = g.id;"),)),
    "nudges deleted blindly": Variant(
        "wake deletes all nudges of a chain, those too that it has not seen",
        (Change("wake", "  where n.chain_id = g.chain and n.nudge_id = g.id and",
            "  where n.chain_id = g.chain and"),)),
    "park without a look": Variant("a run parks before it has looked at its mailbox",
        (Change("answer_all_", "        pausing := pgflow.hear_(", "        perform pgflow.hear_("),
            Change("look_all_", "      where s.run_id = a.me and s.call <@ w.calls",
                "      where false and s.run_id = a.me and s.call <@ w.calls"))),
    "no second look at timers": Variant(
        "who locks a parked row believes the timer that it saw before",
        (Change("wake_due_",
            "  locked := array(\n    select distinct m.run_id from pgflow.timer m where "
                "m.run_id = any(locked) and m.due_at <= t\n  );\n", ""),)),
    "timers early": Variant("a timer counts as due a second before its time",
        (Change("look_all_", "      where u.due_at <= t\n",
            "      where u.due_at <= t + interval '1 second'\n"),)),
    "reap without a look at the beat": Variant(
        "a worker is declared dead though its beat has moved",
        (Change("reap_worker", "  if coalesce(current_beat, -1) is distinct from beat then",
            "  if false then"),)),
    "reap keeps the lease": Variant("the runs of a dead worker are made ready and stay leased",
        (Change("reap_worker",
            "    delete from pgflow.lease e where e.run_id = any(ids) returning e.*",
            "    select e.* from pgflow.lease e where e.run_id = any(ids)"),)),
    "message taken twice": Variant("a message is recorded and stays in the mailbox",
        (Change("look_all_", "select m.address from taken m where m.address is not null",
            "select m.address from taken m where m.kind = 'K'"),
            Change("look_all_", "  if gone <> messages then", "  if false then"))),
    "update taken twice": Variant("an update is recorded and stays in the mailbox",
        (Change("settle_updates_",
            "where s.chain_id = r.chain_id and s.kind = 'u' and s.signal_id = r.message offset 0",
            "where s.chain_id = r.chain_id and s.kind = 'u' and s.signal_id = r.message "
                "and r.status is not null offset 0"),
            Change("settle_updates_", "  if gone <> taken then", "  if false then"))),
    "newest message first": Variant("of two messages of a name the later one is taken",
        (Change("look_all_", "        order by m.signal_id limit 1",
            "        order by m.signal_id desc limit 1"),)),
    "outcome without an end": Variant("a finished run keeps its lease",
        (Change("end_runs_", "  delete from pgflow.lease where run_id = any(ended);\n", ""),)),
    "mail lost at the end": Variant("what is left in the mailbox of a finished run is thrown away",
        (Change("put_mail_aside_",
            "signal_id, chain_id, run_id, sent_at, t, call, kind, name, sent_by, payload from "
                "gone",
            "signal_id, chain_id, run_id, sent_at, t, call, kind, name, sent_by, payload from "
                "gone where false"),)),
    "second start is new": Variant("a start under a taken key compares no inputs",
        (Change("insert_run_", "known.input::jsonb <> insert_run_.input::jsonb", "false"),)),
    "fence that waits for nobody": Variant("fence_step reads the lease without a lock",
        (Change("fence_step", "and e.token = token for no key update;", "and e.token = token;"),)),
    "commit that locks nothing": Variant(
        "commit_units reads the leases without a lock, its worker's or theirs",
        (Change("share_worker_",
            "pg_try_advisory_xact_lock_shared(pgflow.latch_of_(salt, 'worker ' || worker_id))",
            "true"),
            Change("lock_leases_", "      order by e.run_id for no key update skip locked",
                "      order by e.run_id"))),
    "commit that shares no lock": Variant(
        "commit_units reads the leases of runs that go on without the lock of their worker",
        (Change("share_worker_",
            "pg_try_advisory_xact_lock_shared(pgflow.latch_of_(salt, 'worker ' || worker_id))",
            "true"),)),
    "reap beside a commit": Variant(
        "the runs of a dead worker are given away while a batch of its is on the way",
        (Change("reap_worker", "pg_try_advisory_xact_lock(pgflow.latch_('worker ' || worker_id))",
            "true"),)),
    "spending beside the reservation": Variant(
        "a charge leaves what was reserved for it in the sums of its pools",
        (Change("charge_one_",
            "        least(a.value::numeric, coalesce((kept->>a.key)::numeric, 0)) as taken\n",
            "        0::numeric as taken\n"),)),
    "limit counted without a lock": Variant(
        "claims of a queue with a limit do not wait for each other",
        (Change("claim_", "where q.queue = queue_name for no key update;",
            "where q.queue = queue_name;"),)),
}  # fmt: skip
