"""The defects that the tests must notice, each with the one test that does: see `tests.mutants`.

A defect is one change of one file, of the sort that engines have shipped: a fence left out, a lock
taken in another order, a clock of the wrong machine. The texts are short, so that they survive what
does not concern them; `tests/house/test_mutants.py` says at once where one is no longer found.
"""

from __future__ import annotations

from typing import NamedTuple


class Defect(NamedTuple):
    """In this file this text becomes that, and this test notices."""

    name: str
    file: str
    old: str
    new: str
    test: str
    also: tuple[tuple[str, str], ...] = ()
    """Further changes of the file, without which another line of defence would still hold."""

    @property
    def changes(self) -> tuple[tuple[str, str], ...]:
        """(old, new) of every change."""
        return (self.old, self.new), *self.also

    def break_text(self, sound: str) -> str:
        """The text of the file with the defect."""
        for old, new in self.changes:
            assert sound.count(old) == 1, (
                f"{self.name}: {self.file} has the text {sound.count(old)} times: {old!r}"
            )
            sound = sound.replace(old, new)
        return sound


FENCES = (
    Defect(
        "unfenced transaction",
        "sql/runs/transaction.sql",
        "if held_token is distinct from token then",
        "if false then",
        "sql/test_sql_commit.py::test_a_step_whose_lease_is_lost_while_it_runs_writes_nothing",
    ),
    Defect(
        "unfenced batch",
        "sql/runs/commit.sql",
        "if careful or locked_ids is distinct from ids or locked_tokens is distinct from tokens "
        "then",
        "if careful then",
        "sql/test_sql_commit.py::test_a_zombie_commits_nothing[held by another]",
    ),
    Defect(
        "unfenced direct path",
        "sql/runs/commit.sql",
        "if held_token is distinct from token then",
        "if false then",
        "sql/test_sql_commit.py::test_the_direct_path_is_fenced_as_a_batch_is",
    ),
    Defect(
        "outcome overwritten by a late writer",
        "sql/runs/commit.sql",
        "from jsonb_array_elements(batch->'o') e;\n    select",
        "from jsonb_array_elements(batch->'o') e on conflict (run_id) do update set status = "
        "excluded.status, output = excluded.output;\n    select",
        "sql/test_sql_commit.py::test_nobody_can_write_the_end_of_a_run_twice_at_once",
        also=(
            (
                (
                    "if careful or locked_ids is distinct from ids or locked_tokens is distinct from "
                    "tokens then"
                ),
                "if careful and not batch ? 'o' then",
            ),
        ),
    ),
    Defect(
        "on conflict do nothing for units",
        "sql/runs/commit.sql",
        "from jsonb_array_elements(batch->'u') e;",
        "from jsonb_array_elements(batch->'u') e on conflict do nothing;",
        "sql/test_sql_commit.py::test_a_duplicate_names_the_constraint_of_its_partition_and_the_careful_path_decides",
    ),
    Defect(
        "lost acknowledgement taken for lost lease",
        "sql/runs/commit.sql",
        "if next_token = p_token then\n    return 'already';",
        "if false then\n    return 'already';",
        "sql/test_sql_commit.py::test_a_retried_ack_is_already_there_though_the_run_has_moved_on_since",
    ),
    Defect(
        "commit that inherits synchronous_commit = off",
        "sql/runs/commit.sql",
        "perform set_config('synchronous_commit', 'on', true);\n  end if;\n  select array_agg",
        "null;\n  end if;\n  select array_agg",
        "sql/test_sql_commit.py::test_a_commit_is_durable_though_the_session_says_otherwise",
    ),
    Defect(
        "runs handed back by whoever asks",
        "sql/runs/claim.sql",
        "where e.run_id = g.id and e.token = g.tk",
        "where e.run_id = g.id",
        "sql/test_sql_claim.py::test_only_the_holder_of_the_token_hands_a_run_back",
    ),
    Defect(
        "body that commits by itself goes unnoticed",
        "sql/runs/transaction.sql",
        "if current_setting('pgflow.step', true) is distinct from",
        "if false and '' is distinct from",
        "sql/test_sql_commit.py::test_a_body_that_ends_its_transaction_itself_is_found_out",
    ),
    Defect(
        "tokens from a counter",
        "pgflow/_db/calls/claim.py",
        '[token >> 1 for token in struct.unpack(f"{count}Q", secrets.token_bytes(8 * count))]',
        "[next(_counter) for _ in range(count)]",
        "worker/test_recovery.py::test_a_zombie_is_fenced_off_from_a_run_that_another_process_has_claimed",
        also=(("COLUMNS = (", "_counter = __import__('itertools').count(1)\nCOLUMNS = ("),),
    ),
)

CLAIMS = (
    Defect(
        "claim by IN (... LIMIT ...)",
        "sql/runs/claim.sql",
        "delete from pgflow.ready r where r.ctid = any(locked) returning r.*",
        "delete from pgflow.ready r where r.run_id in (\n"
        "      select k.run_id from pgflow.ready k where k.lane_id = lanes[1] and k.suspect = 0\n"
        "      order by k.priority, k.run_id limit max for update skip locked\n"
        "    ) returning r.*",
        "sql/test_sql_claim.py::test_no_plan_makes_a_claim_take_more_than_asked[one lane]",
    ),
    Defect(
        "claim that leaves the order to the planner",
        "sql/runs/claim.sql",
        "cross join lateral (select l.* from pgflow.lease l where l.run_id = i.id offset 0) e",
        "join pgflow.lease e on e.run_id = i.id",
        "sql/test_sql_claim.py::test_claims_come_in_their_order_though_statistics_know_of_no_lease",
    ),
    Defect(
        "runs ended at a time read before they were locked",
        "sql/runs/wake.sql",
        "  t := greatest(t, pgflow.now_()); --",
        "  --",
        "sql/test_sql_wake.py::test_a_run_that_comes_back_after_a_wake_has_read_the_clock_is_not_ended_before_its_last_unit",
    ),
    Defect(
        "claim that waits",
        "sql/runs/claim.sql",
        "select r.ctid from pgflow.ready r where r.ctid = any(heads) and r.lane_id + 0 = "
        "any(lanes) for update skip locked",
        "select r.ctid from pgflow.ready r where r.ctid = any(heads) and r.lane_id + 0 = "
        "any(lanes) for update",
        "sql/test_sql_claim.py::test_a_claim_steps_over_rows_that_are_locked[two lanes]",
    ),
    Defect(
        "limit that claims read side by side",
        "sql/runs/claim.sql",
        "where q.queue = queue_name for no key update;",
        "where q.queue = queue_name;",
        "sql/test_sql_claim.py::test_a_claim_waits_for_another_of_the_same_limited_queue_and_then_counts_its_leases",
    ),
    Defect(
        "suspects claimed in crowds",
        "sql/runs/claim.sql",
        "more := pgflow.take_heads_(free_lanes, 1, true,",
        "more := pgflow.take_heads_(free_lanes, max, true,",
        "sql/test_sql_claim.py::test_suspects_are_claimed_one_at_a_time_and_never_block_the_others",
    ),
    Defect(
        "claims that read on and never look back",
        "pgflow/_worker/claim_cursor.py",
        "            self._last = None\n            return",
        "            return",
        "worker/test_front.py::test_a_claim_that_finds_less_than_it_asked_for_leads_to_a_look_from_the_head_at_once",
    ),
    Defect(
        "claims that always read from the head",
        "sql/runs/claim.sql",
        "last_run_id bigint := coalesce(after[2], 0);",
        "last_run_id bigint := 0 * coalesce(after[2], 0);",
        "sql/test_held_snapshot.py::test_claims_that_read_on_read_no_more_pages_while_a_snapshot_is_held[one lane]",
    ),
    Defect(
        "second start under a key is another run's",
        "sql/runs/start.sql",
        "known.input::jsonb <> insert_run_.input::jsonb",
        "false",
        "sql/test_sql_start.py::test_a_key_refuses_another_workflow_or_input_and_its_run_is_unharmed",
    ),
    Defect(
        "batch sent again under keys that nothing looks for",
        "pgflow/_client/starts.py",
        "is_new = self.is_made_up and not again",
        "is_new = self.is_made_up",
        "proof/test_wirecut.py::test_many_runs_without_keys_are_started_once_though_the_answer_is_lost[400-commit-after]",
    ),
    Defect(
        "batch whose keys are made up where it arrives",
        "sql/runs/start.sql",
        "array_agg(coalesce(g.e->>0, stems[g.n]::text) order by g.n)",
        "array_agg(pgflow.uuid7_()::text)",
        "proof/test_wirecut.py::test_many_runs_without_keys_are_started_once_though_the_answer_is_lost[3-start_runs-after]",
    ),
    Defect(
        "answer before a failed commit taken for the commit",
        "pgflow/_db/wire.py",
        "if failed is not None:\n            raise",
        "if failed is not None and not results:\n            raise",
        "db/test_wire.py::test_an_error_of_the_commit_behind_the_answer_is_the_answer[40001-sqlstates0-alone-True]",
    ),
    Defect(
        "calls at whatever level the database has",
        "pgflow/_db/connect.py",
        "return connection.info.transaction_status == pq.TransactionStatus.IDLE",
        "return False",
        "db/test_default_levels.py::test_the_engine_s_transactions_are_read_committed_and_steps_are_as_the_database_says[repeatable read]",
    ),
    Defect(
        "answer that libpq made taken for the server's",
        "pgflow/_db/failures.py",
        " or type(cause) is psycopg.DatabaseError",
        "",
        "proof/test_wirecut.py::test_an_answer_that_libpq_made_itself_is_infrastructure",
    ),
    Defect(
        "run begun again for each answer that was lost",
        "pgflow/_client/_sync/rewind.py",
        "fork.restart_run(key, stored_new_input(self._envelopes, input), options), once=True",
        "fork.restart_run(key, stored_new_input(self._envelopes, input), options)",
        "proof/test_wirecut.py::test_a_run_is_begun_again_once_or_its_caller_hears_that_nobody_knows[after]",
    ),
)

LOCKS = (
    Defect(
        "leases locked in the order of the batch",
        "sql/runs/commit.sql",
        "order by e.run_id for no key update skip locked",
        "order by array_position(ids, e.run_id) for no key update",
        "sql/test_sql_locks.py::test_batches_that_name_their_runs_in_opposite_orders_never_deadlock[commit]",
    ),
    Defect(
        "leases handed back in the order of the call",
        "sql/runs/claim.sql",
        "order by e.run_id for update;",
        "order by array_position(run_ids, e.run_id) for update;",
        "sql/test_sql_locks.py::test_batches_that_name_their_runs_in_opposite_orders_never_deadlock[release]",
    ),
    Defect(
        "keys taken in the order of the batch",
        "sql/runs/start.sql",
        "where g.i is not null order by g.k\n",
        "where g.i is not null\n",
        "sql/test_sql_start.py::test_two_batches_that_wait_for_the_same_key_do_not_deadlock_over_others",
    ),
    Defect(
        "keys of children in the order of calls",
        "sql/runs/children.sql",
        "order by r.tenant, g.key\n",
        "\n",
        "sql/test_sql_wake.py::test_two_batches_that_start_children_of_the_same_keys_do_not_deadlock",
    ),
    Defect(
        "wake that waits for a commit",
        "sql/runs/wake.sql",
        "order by e.run_id for no key update skip locked",
        "order by e.run_id for no key update",
        "sql/test_sql_wake.py::test_a_signal_wakes_its_run_in_every_order_of_sender_parker_and_poll",
    ),
    Defect(
        "reaper that waits for a frozen worker",
        "sql/ops/worker.sql",
        "order by e.run_id for update skip locked",
        "order by e.run_id for update",
        "sql/test_sql_workers.py::test_a_frozen_worker_that_locks_a_lease_is_not_waited_for",
    ),
    Defect(
        "signal offered beside other mail",
        "sql/runs/claim.sql",
        "            and not exists (select from pgflow.signal o where o.chain_id = r.chain_id\n   "
        "           and o.signal_id <> s.signal_id offset 0)\n",
        "",
        "sql/test_sql_deliver.py::test_nothing_is_offered_where_there_is_more_or_nothing",
    ),
    Defect(
        "signal taken that is not there",
        "sql/runs/commit.sql",
        "if gone <> jsonb_array_length(taken) then",
        "if false then",
        "sql/test_sql_deliver.py::test_a_signal_that_is_gone_cannot_be_taken",
    ),
    Defect(
        "signals of a lost run taken with the batch",
        "sql/runs/commit.sql",
        "jsonb_array_elements(batch->'m') e where (e->0)::bigint = any(good)",
        "jsonb_array_elements(batch->'m') e where true",
        "sql/test_sql_deliver.py::test_of_a_mixed_batch_only_the_good_take_their_signals",
    ),
    Defect(
        "offered signal taken past a timer",
        "pgflow/_engine/release.py",
        "if any(c.looked_at_us and c.looked_at_us <= offer.sent_us for c in waits):",
        "if False:",
        "engine/test_engine_offers.py::test_a_timer_that_was_due_before_goes_first",
    ),
    Defect(
        "fence with a signal that is still in the mailbox",
        "pgflow/_engine/flushing.py",
        "or self._buffer.has_mail\n",
        "\n",
        "engine/test_engine_offers.py::test_a_transaction_waits_until_the_signal_before_it_is_recorded",
    ),
    Defect(
        "signal handed over while another moves the run",
        "sql/runs/signal.sql",
        "where p.run_id = newest for update skip locked;",
        "where p.run_id = newest for update;",
        "sql/test_sql_deliver.py::test_it_waits_for_nobody",
    ),
    Defect(
        "signal handed over in an old snapshot",
        "sql/runs/signal.sql",
        "if current_setting('transaction_isolation') = 'read committed' then",
        "if true then",
        "sql/test_sql_deliver.py::test_it_is_only_sent_where_one_snapshot_serves_the_transaction",
    ),
    Defect(
        "signal of the client's transaction handed over",
        "pgflow/app/_async_clients.py",
        "    _send_signal = staticmethod(mail.send_signal)\n",
        "",
        "flow/test_signals.py::test_who_sends_in_a_transaction_of_its_own_makes_the_run_ready_in_it",
    ),
    Defect(
        "batch that does not share its worker's lock",
        "sql/runs/commit.sql",
        "and pg_try_advisory_xact_lock_shared(hashtext('pgflow.worker'), worker_id)",
        "",
        "sql/test_sql_commit.py::test_a_reaper_leaves_a_run_whose_commit_is_on_its_way_for_later",
    ),
    Defect(
        "reaper that takes runs beside a batch",
        "sql/ops/worker.sql",
        "if pg_try_advisory_xact_lock(hashtext('pgflow.worker'), worker_id) then",
        "if true then",
        "sql/test_sql_commit.py::test_a_reaper_leaves_a_run_whose_commit_is_on_its_way_for_later",
    ),
    Defect(
        "runs handed back beside a batch",
        "sql/runs/claim.sql",
        "perform pg_advisory_xact_lock(hashtext('pgflow.worker'), w.worker_id) from",
        "perform from",
        "sql/test_sql_commit.py::test_runs_are_handed_back_after_the_flush_that_is_on_its_way",
    ),
    Defect(
        "leases read in an old snapshot",
        "sql/runs/commit.sql",
        "return worker_id is not null and current_setting('transaction_isolation') = 'read "
        "committed'",
        "return worker_id is not null",
        "sql/test_sql_commit.py::test_a_commit_with_one_snapshot_for_all_locks_its_leases",
    ),
    Defect(
        "worker's lock taken for that of another's leases",
        "sql/runs/commit.sql",
        "and e.worker_id = (batch->'w')::int and",
        "and",
        "sql/test_sql_commit.py::test_runs_that_a_worker_took_over_under_another_number_are_locked_one_by_one",
    ),
)

WAKES = (
    Defect(
        "park without a second look",
        "sql/runs/answer.sql",
        "from pgflow.look_all_(questions, looking, seqs, mailed, t) l",
        "from pgflow.look_all_((select jsonb_agg(case when q ? 'park' then q - 'signals' else q "
        "end) from jsonb_array_elements(questions) q), looking, seqs, mailed, t) l",
        "sql/test_sql_wake.py::test_a_signal_wakes_its_run_by_the_next_poll_though_both_sides_die_before_they_wake_it",
    ),
    Defect(
        "nudge deleted whatever was seen",
        "sql/runs/wake.sql",
        "n.nudge_id = g.id and g.chain <> all(keep);",
        "n.nudge_id = g.id;",
        "sql/test_sql_wake.py::test_a_run_locked_elsewhere_is_not_waited_for_and_keeps_its_nudge",
    ),
    Defect(
        "wake-up by notification only",
        "pgflow/_worker/poller.py",
        "async with asyncio.timeout(wait):",
        "async with asyncio.timeout(None):",
        "client/test_runs.py::test_runs_go_on_and_results_arrive_without_listening",
    ),
    Defect(
        "result of a child that nudges nobody",
        "sql/runs/finish.sql",
        "insert into pgflow.nudge (chain_id) select c from unnest(parents) c;",
        "",
        "sql/test_sql_wake.py::test_the_result_of_a_child_wakes_its_parent_by_the_next_poll_though_both_sides_die_before_they_wake_it",
    ),
    Defect(
        "signal taken and not recorded",
        "sql/runs/answer.sql",
        "select m.address from taken m where",
        "select m.address from happened m where",
        "sql/test_sql_wake.py::test_due_timers_and_results_of_children_come_together_and_a_signal_alone",
        also=(("  if gone <> messages then", "  if false then"),),
    ),
    Defect(
        "last signal first",
        "sql/runs/answer.sql",
        "order by m.signal_id limit 1",
        "order by m.signal_id desc limit 1",
        "sql/test_sql_wake.py::test_each_signal_goes_to_one_wait_in_the_order_of_sending",
    ),
    Defect(
        "result stored in clear beside a codec",
        "pgflow/_engine/outcomes.py",
        "            return call.value_of(open_text(envelopes, stored, what), what), None, stored\n",
        "            return call.value_of(open_text(envelopes, stored, what), what), None, "
        "result.text\n",
        "model/test_codec.py::test_no_value_of_a_run_is_readable_in_the_database",
    ),
    Defect(
        "arguments hashed without the secret",
        "pgflow/_engine/values.py",
        "None if claim.envelopes is None else claim.envelopes.hash_key",
        "None",
        "model/test_codec.py::test_hashes_of_arguments_are_keyed_and_other_arguments_are_noticed",
    ),
    Defect(
        "encoded value taken for what it is not",
        "pgflow/_model/envelopes.py",
        '    if envelopes is None:\n        raise CodecError(\n            f"{what} was encoded',
        "    if envelopes is None:\n        return json.dumps(envelope)\n"
        '        raise CodecError(\n            f"{what} was encoded',
        "model/test_codec.py::test_whoever_cannot_decode_a_value_is_told_and_holds_the_run[without "
        "a codec]",
    ),
    Defect(
        "encoded request let through by the policy",
        "sql/core/envelopes.sql",
        "  select path is null or not pgflow.is_envelope_(request) or",
        "  select true or path is null or",
        "model/test_codec.py::test_the_policy_sees_what_an_effect_lets_it_see_and_nothing_passes_unseen",
    ),
    Defect(
        "message of the wrong type sent",
        "sql/runs/signal.sql",
        "  perform pgflow.check_payload_(newest, key, name, payload);\n",
        "",
        "client/test_signal_types.py::test_a_payload_of_the_wrong_type_is_refused_in_sql_python_and_on_the_command_line",
    ),
    Defect(
        "message refused for the type of one worker of two",
        "sql/core/shape.sql",
        "    if why is null then\n      return;\n    end if;\n  end loop;\n  if why",
        "    exit when why is not null;\n  end loop;\n  if why",
        "client/test_signal_types.py::test_what_one_of_the_codes_takes_that_are_served_is_sent",
    ),
    Defect(
        "message refused for the type of code that is gone",
        "sql/core/shape.sql",
        "where c.workflow = workflow and (version = '' or c.version = version)\n      and exists "
        "(select from pgflow.worker_code w where w.code_id = c.code_id)",
        "where c.workflow = workflow and (version = '' or c.version = version)",
        "client/test_signal_types.py::test_what_one_of_the_codes_takes_that_are_served_is_sent",
    ),
    Defect(
        "number in a text refused",
        "pgflow/_model/shapes.py",
        '"is": ["number", "string", "boolean"],\n            "like": "[0-9]",\n            '
        '"what": "number",',
        '"is": ["number"],',
        "client/test_signal_types.py::test_nothing_is_refused_that_the_code_would_take[<class "
        "'int'>]",
    ),
    Defect(
        "message of the wrong type given to the code",
        "pgflow/_engine/release.py",
        "if isinstance(call, SignalCall) and isinstance(error, NotStorable) and self._is_newest():",
        "if False:",
        "client/test_messages.py::test_the_run_is_stuck_and_says_why_and_nothing_is_consumed[recorded]",
    ),
    Defect(
        "message of the wrong type taken from an offer",
        "pgflow/_engine/release.py",
        "        if misfit is not None:\n            self._stand_by(call, misfit)\n            "
        "return False\n",
        "",
        "client/test_messages.py::test_the_run_is_stuck_and_says_why_and_nothing_is_consumed[offered]",
        also=(
            (
                (
                    "        return not self.decided and (not self._history.replaying or "
                    "self._history.journal.is_told)"
                ),
                "        return False",
            ),
        ),
    ),
    Defect(
        "message given back and lost",
        "sql/runs/commit.sql",
        "    perform pgflow.put_signals_back_(batch->'b');",
        "    null;",
        "client/test_messages.py::test_the_run_is_stuck_and_says_why_and_nothing_is_consumed[recorded]",
    ),
    Defect(
        "replay that takes what went back",
        "pgflow/_engine/history.py",
        "units = without_returned(self._units_of(claim)) if",
        "units = self._units_of(claim) if",
        "client/test_messages.py::test_a_replay_passes_over_what_went_back",
    ),
    Defect(
        "cancel behind a message that nobody can take",
        "sql/runs/answer.sql",
        "order by h.is_refused, h.at, h.call, h.signal_id",
        "order by h.at, h.call, h.signal_id",
        "client/test_messages.py::test_a_cancel_goes_before_a_message_that_the_code_cannot_take",
    ),
    Defect(
        "message put back twice by a rewind",
        "sql/again/fork.sql",
        "    from pgflow.unit u where u.run_id = origin and u.seq > cut and u.kind = 'S'\n      "
        "and not pgflow.is_returned_(origin, u.seq)\n  ) s;",
        "    from pgflow.unit u where u.run_id = origin and u.seq > cut and u.kind = 'S'\n  ) s;",
        "client/test_messages.py::test_a_part_done_again_has_the_message_once[rewind_run('k', 0)]",
        also=(
            (
                (
                    "    where u.run_id = origin and u.seq > cut and u.kind = 'S' and not "
                    "pgflow.is_returned_(origin, u.seq)\n  );"
                ),
                "    where u.run_id = origin and u.seq > cut and u.kind = 'S'\n  );",
            ),
        ),
    ),
    Defect(
        "sender not told that the run has ended",
        "sql/runs/signal.sql",
        "    ended_as := pgflow.ended_as_(newest);\n",
        "",
        "client/test_delivery.py::test_sql_says_how_the_run_has_ended_and_keeps_the_message[completed-deliver_signal]",
    ),
    Defect(
        "mail of the finished dropped",
        "sql/runs/finish.sql",
        "sent_by, payload, refusal->>'error' from gone;",
        "sent_by, payload, refusal->>'error' from gone where false;",
        "sql/test_sql_wake.py::test_mail_that_nobody_took_is_put_aside_when_the_run_ends",
    ),
    Defect(
        "cancel lost when its run gets stuck",
        "sql/runs/answer.sql",
        "places[one.pos] := 'ended';\n      end if;\n      to_wake := to_wake || "
        "pgflow.nudge_asked_(array[one.chain]);",
        "places[one.pos] := 'ended';\n        to_wake := to_wake || "
        "pgflow.nudge_asked_(array[one.chain]);\n      end if;",
        "sql/test_sql_wake.py::test_a_cancel_reaches_a_run_that_gets_stuck_in_every_order",
    ),
    Defect(
        "cancel lost with its worker",
        "sql/ops/worker.sql",
        "perform pgflow.nudge_asked_(array(",
        "perform (array(",
        "sql/test_sql_wake.py::test_a_cancel_reaches_a_run_whose_worker_died_once_too_often",
    ),
    Defect(
        "cancel delivered again and again",
        "sql/runs/answer.sql",
        "not coalesce((a.q->'cancelled')::boolean, false) and",
        "",
        "sql/test_sql_control.py::test_a_cancel_is_delivered_once_with_who_and_why",
        also=(("  if questions @? '$[*] ? (@.cancelled == true)' then", "  if false then"),),
    ),
)

CLOCKS = (
    Defect(
        "delays that count on the worker's clock",
        "sql/runs/commit.sql",
        "    t + (e->>8)::float8 * interval '1 second'",
        "    timestamptz 'epoch' + (e->7)::bigint * interval '1 microsecond' + (e->>8)::float8 * "
        "interval '1 second'",
        "sql/test_sql_commit.py::test_times_are_kept_to_the_microsecond_and_delays_count_from_the_commit",
    ),
    Defect(
        "a run's time from the clock of its worker",
        "pgflow/_engine/clock.py",
        "return max(self._ahead_us + self._host.monotonic_us(), self.stands_us or 0)",
        "return __import__('time').time_ns() // 1000",
        "flow/test_timers.py::test_now_is_the_databases_time_of_the_last_outcome_and_the_same_on_replay",
    ),
    Defect(
        "timers that fire early",
        "sql/runs/answer.sql",
        "where u.due_at <= t\n",
        "where u.due_at <= t + interval '1 second'\n",
        "sql/test_sql_wake.py::test_a_timer_that_is_looked_at_before_its_time_has_not_fired",
    ),
    Defect(
        "deadlines that come early",
        "sql/runs/wake.sql",
        "where k.due_at <= t order by k.due_at",
        "where k.due_at <= t + interval '1 second' order by k.due_at",
        "sql/test_sql_wake.py::test_a_deadline_is_never_early_and_cancels_once",
    ),
    Defect(
        "what was looked at first wins",
        "sql/runs/answer.sql",
        "order by h.is_refused, h.at, h.call, h.signal_id)",
        "order by h.is_refused, h.kind desc, h.at, h.call, h.signal_id)",
        "sql/test_sql_wake.py::test_what_happened_first_wins_however_late_the_database_looks",
    ),
    Defect(
        "reaper that trusts an old beat",
        "sql/ops/worker.sql",
        "if coalesce(current_beat, -1) is distinct from beat then",
        "if false then",
        "sql/test_sql_workers.py::test_a_worker_that_beat_since_it_was_observed_is_not_dead",
    ),
    Defect(
        "sleeper who takes the others for dead",
        "pgflow/_worker/reaper.py",
        "if gap > max(4 * self._look_seconds, 2.0):",
        "if False:",
        "worker/test_heart.py::test_who_was_asleep_takes_nobody_for_dead",
    ),
    Defect(
        "heartbeats on the worker's loop",
        "pgflow/_worker/heartbeat.py",
        "if time.monotonic() >= next_beat:",
        "if time.monotonic() >= next_beat and self._watchdog._ticks() != self._watchdog._last[0]:",
        "worker/test_heart.py::test_a_loop_that_stands_still_does_not_stop_the_heart",
    ),
    Defect(
        "effects begun while others may think us dead",
        "pgflow/_worker/host.py",
        'if call.spec.effect != "r" and self._life.is_stale:',
        "if False:",
        "worker/test_heart.py::test_a_worker_that_may_be_thought_dead_begins_nothing_that_acts",
    ),
    Defect(
        "deaths that nobody counts",
        "sql/ops/worker.sql",
        "then 0 else g.suspect + 1 end as deaths",
        "then 0 else g.suspect end as deaths",
        "sql/test_sql_workers.py::test_attempts_and_deaths_grow_until_something_is_recorded",
    ),
)

REPLAY = (
    Defect(
        "outcomes in the order of completion, whosever they are",
        "pgflow/_engine/release.py",
        "        call = self._agenda.open.get(unit.call)\n        if unit.kind == "
        "Kind.CHILD_STARTED:\n            self._release_start",
        "        call = next(iter(self._agenda.open.values()), None)\n        if unit.kind == "
        "Kind.CHILD_STARTED:\n            self._release_start",
        "engine/test_engine_replay.py::test_a_run_comes_to_the_same_end_in_any_order_of_events[gathering]",
    ),
    Defect(
        "outcomes decided together taken one by one",
        "pgflow/_engine/release.py",
        "if not (unit.is_answer or unit.kind == Kind.CHILD_STARTED):",
        "if True:",
        "engine/test_engine_order.py::test_what_the_code_notes_between_two_verdicts_of_one_answer_is_repeated",
    ),
    Defect(
        "fence before the last outcome is released",
        "pgflow/_engine/flushing.py",
        "not (\n            self.locked\n            or self._release.decided\n"
        "            or self._buffer.has_mail\n            or self._buffer.has_ledger\n"
        "            or self._code.driver.busy\n            or self._buffer.has_draws\n        )",
        "not self.locked",
        "engine/test_engine_order.py::test_what_a_fence_answers_is_released_before_the_next_fence",
    ),
    Defect(
        "licence not written ahead",
        "pgflow/_engine/calls.py",
        "if self.spec.effect == StepKind.STEP and not self.is_licensed:",
        "if False:",
        "engine/test_engine_order.py::test_a_lone_licence_is_a_unit_of_its_own",
    ),
    Defect(
        "tasks in the order of their addresses",
        "pgflow/_engine/loop.py",
        "    own_context: contextvars.Context\n\n    def __hash__(self) -> int:\n        return "
        "self._ordinal",
        "    own_context: contextvars.Context\n\n    def __hash__(self) -> int:\n        return "
        "id(self) >> 4",
        "engine/test_loop.py::test_wait_over_a_set_of_tasks_keeps_the_order_of_their_creation",
    ),
    Defect(
        "executions left to the collector",
        "pgflow/_engine/code.py",
        "        self.closing = True\n        self.driver.close()",
        "        self.closing = True",
        "engine/test_loop.py::test_a_run_that_leaves_its_worker_is_taken_apart_there_and_then_in_its_own_context",
    ),
    Defect(
        "generators left to the collector",
        "pgflow/_engine/loop.py",
        "self._generators.append(\n            (\n                generator,\n                "
        "task.own_context if isinstance(task, WorkflowTask) else contextvars.copy_context(),\n"
        "            )\n        )",
        "del task",
        "engine/test_loop.py::test_an_abandoned_generator_is_closed_when_the_loop_is_and_not_by_the_collector",
    ),
    Defect(
        "chance that a replay does not repeat",
        "pgflow/_engine/notes.py",
        "random.Random(stem)",
        "random.Random()",
        "flow/test_timers.py::test_chance_is_the_same_on_replay_and_different_for_every_run_and_generation",
    ),
    Defect(
        "step that is no longer asked for is forgotten",
        "pgflow/_engine/history.py",
        "for start in self.journal.open_starts():",
        "for start in ():",
        "engine/test_engine_divergence.py::test_code_that_no_longer_asks_for_a_step_that_may_have_acted_is_reported[nothing]",
    ),
    Defect(
        "arguments of a started step not compared",
        "pgflow/_engine/steps.py",
        "if started.args_hash not in self._values.other_hashes(call):",
        "if False:",
        "engine/test_engine_divergence.py::test_a_started_step_asked_for_with_other_arguments_is_reported",
    ),
    Defect(
        "failed attempts forgotten by a replay",
        "pgflow/_engine/calls.py",
        "self.failed_attempts += 1",
        "pass",
        "engine/test_engine_divergence.py::test_failed_attempts_are_counted_on_replay",
    ),
)

STEPS = (
    Defect(
        "contention recorded as an outcome",
        "pgflow/_transactions/protocol.py",
        "is_infrastructure(error)\n        or is_conflict_on_unit(error)\n        or state.startswith",
        "state.startswith",
        "proof/test_commitfaults.py::test_where_the_commit_itself_is_refused_the_work_is_done_once",
    ),
    Defect(
        "trouble of the body's own database taken for ours",
        "pgflow/_worker/transaction_bodies.py",
        "return connection is None or is_raised_on(error, connection)",
        "return True",
        "db/test_infrastructure.py::test_another_connection_in_a_transaction_is_the_body_s_own[async]",
    ),
    Defect(
        "a lock that was asked for without waiting is waited for",
        "pgflow/_transactions/protocol.py",
        "if is_honoured(error) and isinstance(error, call.spec.raises):",
        "if False:",
        "db/test_infrastructure.py::test_a_lock_that_is_not_to_be_had_is_an_outcome_where_the_transaction_says_so[async]",
    ),
    Defect(
        "an error of a hook behind COMMIT taken for one of COMMIT",
        "pgflow/_transactions/protocol.py",
        "committed = (has_hooks or is_ambiguous(error)) and",
        "committed = is_ambiguous(error) and",
        "transactions/test_sqlalchemy.py::test_an_error_of_what_listens_to_the_commit_is_none_of_the_commit[psycopg-OperationalError]",
    ),
    Defect(
        "look arranged while a question is on its way",
        "pgflow/_engine/flushing.py",
        "        leaving = idle and self._may_leave()\n",
        "        leaving = idle and self._may_leave()\n        self._look_later()\n",
        "engine/test_engine_objects.py::test_a_run_arranges_no_look_while_its_question_is_on_its_way",
    ),
    Defect(
        "context of a body that ended",
        "pgflow/_worker/bodies.py",
        "            context=self._context.copy(),\n",
        "            context=contextvars.copy_context(),\n",
        "flow/test_context_variables.py::test_a_body_that_begins_when_another_ends_does_not_see_what_that_has_set",
    ),
    Defect(
        "a transaction held for its first trouble",
        "pgflow/_worker/bodies.py",
        "elif not is_passing(trouble.error) and now - failing_since",
        "if not is_passing(trouble.error) and now - failing_since",
        "db/test_infrastructure.py::test_a_transaction_is_not_held_for_its_first_trouble_however_long_its_body_took",
    ),
    Defect(
        "a conflict lost for ever",
        "pgflow/_db/failures.py",
        '_PASSING = re.compile(r"08|53|57P0|58|55P03$|25006$")',
        '_PASSING = re.compile(r"08|53|57P0|58|40|55P03$|25006$")',
        "db/test_infrastructure.py::test_what_is_refused_for_long_for_one_run_holds_that_run_and_no_other[40001]",
    ),
    Defect(
        "a body that closes its connection run for ever",
        "pgflow/_transactions/protocol.py",
        "if has_closed():",
        "if False:",
        "db/test_infrastructure.py::test_a_body_that_closes_its_connection_is_not_run_again_and_again[async]",
    ),
    Defect(
        "a pool without room recorded as an outcome",
        "pgflow/sqlalchemy/__init__.py",
        "raise psycopg.OperationalError(str(error)) from error",
        "raise",
        "transactions/test_sqlalchemy.py::test_a_pool_that_has_no_connection_in_time_is_waited_out[psycopg-sync]",
    ),
    Defect(
        "a sender told that it failed where nobody could be woken",
        "pgflow/app/_sync_clients.py",
        "log.log(\n                logging.DEBUG if is_passing(error) else logging.WARNING",
        "if not is_passing(error): raise\n            log.log(\n                logging.DEBUG",
        "db/test_infrastructure.py::test_who_has_sent_something_is_not_told_that_it_failed_because_nobody_could_be_woken[sync-missing]",
    ),
    Defect(
        "a signal of the command line that fails where nobody could be woken",
        "cli/pgflow_cli/look/mail.py",
        "    except psycopg.Error as error:\n        note(",
        "    except psycopg.OperationalError as error:\n        note(",
        "db/test_infrastructure.py::test_a_signal_of_the_command_line_is_sent_though_nobody_could_be_woken",
    ),
    Defect(
        "the end of an idle session recorded as an outcome",
        "pgflow/_db/failures.py",
        '|25006$|25P03$|25P04$|26000$|42P05$"',
        '|25006$|26000$|42P05$"',
        "db/test_infrastructure.py::test_trouble_of_the_transaction_s_connection_is_waited_out[sync-25P03-plainly]",
    ),
    Defect(
        "a call that cannot be made recorded as an outcome",
        "pgflow/_transactions/protocol.py",
        'if state is not None and not is_of_the_data(error) and state not in ("25P01", "25P02"):',
        "if False:",
        "db/test_infrastructure.py::test_an_engine_call_of_a_transaction_that_cannot_be_made_is_waited_out[async-begin_step]",
    ),
    Defect(
        "connections kept while nothing is to do",
        "pgflow/_worker/committer.py",
        "for line in rested[: len(opened) - 1]:",
        "for line in rested[:0]:",
        "db/test_connections.py::test_a_worker_that_rests_keeps_one_connection_for_commits_and_none_for_transactions",
    ),
    Defect(
        "runs held for trouble of the server",
        "pgflow/_worker/committer.py",
        "is_for_good = is_data or (\n            not is_passing(error) and now - "
        "flush.failing_since >= REFUSED_AFTER_SECONDS\n        )",
        "is_for_good = True",
        "db/test_infrastructure.py::test_a_journal_without_room_is_waited_out_until_it_has_some",
    ),
    Defect(
        "data that the server refuses sent for ever",
        "pgflow/_worker/committer.py",
        "is_for_good = is_data or (",
        "is_for_good = (",
        "db/test_infrastructure.py::test_data_that_the_server_refuses_holds_its_run_at_once",
    ),
    Defect(
        "texts sent in another encoding than the session's",
        "pgflow/_db/connect.py",
        '"client_encoding": "utf8",',
        "",
        "db/test_settings.py::test_a_run_comes_to_the_same_whatever_the_database_is_set_to[latin 1]",
    ),
    Defect(
        "times read in whatever style the role has",
        "pgflow/_db/connect.py",
        '(connection.info.parameter_status("DateStyle") or "ISO").startswith("ISO")',
        "True",
        "db/test_settings.py::test_a_run_comes_to_the_same_whatever_the_database_is_set_to[times]",
    ),
    Defect(
        "literals that mean something else to some roles",
        "sql/core/partition.sql",
        "'^unit_([0-9]+)$'",
        "'^unit_(\\d+)$'",
        "db/test_settings.py::test_the_journal_gets_its_partitions_whatever_strings_mean",
    ),
    Defect(
        "a schema in a database that cannot store every text",
        "pgflow/schema/_state.py",
        'if found.encoding != "UTF8":',
        "if False:",
        "db/test_settings.py::test_a_database_that_cannot_store_every_text_is_refused_in_one_line[LATIN1]",
    ),
    Defect(
        "a pooler that goes unnoticed",
        "pgflow/_db/connect.py",
        "if theirs in mine or len(mine) > 1:",
        "if False:",
        "db/test_settings.py::test_a_pooler_in_transaction_mode_is_noticed_and_worked_with",
    ),
    Defect(
        "what a pooler loses is prepared again",
        "pgflow/_db/connect.py",
        "self.has_ended = True",
        "pass",
        "db/test_settings.py::test_a_pooler_that_was_not_noticed_is_named_once_it_loses_what_was_prepared",
    ),
    Defect(
        "deadlocks recorded as an outcome",
        "pgflow/_db/failures.py",
        "|40P01$",
        "",
        "transactions/test_transactions.py::test_a_deadlock_is_tried_again_and_not_recorded",
    ),
    Defect(
        "COMMIT retried blindly",
        "pgflow/_transactions/protocol.py",
        "(has_hooks or is_ambiguous(error)) and (\n                yield",
        "False and (\n                yield",
        "transactions/test_commit_protocol.py::test_a_unit_that_is_there_says_that_the_commit_happened",
    ),
    Defect(
        "commit in progress taken for failed",
        "pgflow/_transactions/protocol.py",
        'if status != "in progress":',
        "if True:",
        "transactions/test_commit_protocol.py::test_a_transaction_in_progress_is_waited_out_and_not_taken_for_failed",
    ),
    Defect(
        "bodies stopped with their worker recorded as failed",
        "pgflow/_worker/bodies.py",
        "return isinstance(error, asyncio.CancelledError) and (\n            self._stopped",
        "return isinstance(error, asyncio.CancelledError) and (\n            False",
        "worker/test_recovery.py::test_steps_that_do_not_end_in_time_are_given_up_when_their_worker_stops_and_run_again[async]",
    ),
    Defect(
        "bodies begun while the worker stops",
        "pgflow/_engine/execution.py",
        "is_held_back = flushing.pausing or flushing.draining or",
        "is_held_back = flushing.pausing or",
        "engine/test_engine_order.py::test_a_draining_run_starts_no_read_either",
    ),
    Defect(
        "late result of a step that was given up",
        "pgflow/_engine/release.py",
        "        if self._agenda.open.get(call.number) is not call:\n            return False\n",
        "",
        "engine/test_engine_order.py::test_the_late_result_of_an_abandoned_step_is_ignored",
    ),
    Defect(
        "runs kept by a worker that has stopped",
        "pgflow/_worker/runs.py",
        "        for execution in executions:\n            self.remove(execution)\n        await "
        "self._release([e.claim for e in executions])",
        "        for execution in executions:\n            self.remove(execution)",
        "worker/test_recovery.py::test_a_worker_that_stops_lets_its_steps_finish_and_hands_the_rest_back",
    ),
    Defect(
        "first run sees what no replay will",
        "pgflow/_engine/outcomes.py",
        "return call.value_of(result.text, what), None, result.text",
        "return json.loads(result.text), None, result.text",
        "engine/test_engine_replay.py::test_a_replay_sees_every_value_and_error_as_the_first_run_did[in_sequence]",
    ),
    Defect(
        "retry under a new idempotency key",
        "pgflow/_flow/scope.py",
        'return f"{self.claim.stem}/{self.call.name}/{self.call.ordinal}"',
        'return f"{self.claim.stem}/{self.call.name}/{self.call.ordinal}.{self.attempt}"',
        "flow/test_steps.py::test_the_key_of_a_call_is_equal_on_every_attempt_and_different_for_every_call",
    ),
    Defect(
        "keys that count what is begun and not what is asked for",
        "pgflow/_engine/steps.py",
        "            self._keys.count(call)\n",
        "            pass\n",
        "flow/test_steps.py::test_after_a_crash_recorded_steps_are_not_run_again_and_the_open_one_is_under_the_same_key",
        also=(
            (
                "def do(self, call: StepCall, want: str) -> None:\n",
                "def do(self, call: StepCall, want: str) -> None:\n        self._keys.count(call)\n",
            ),
        ),
    ),
)

SECURITY = (
    Defect(
        "force for everybody",
        "sql/runs/control.sql",
        "    perform pgflow.check_may_force_(key);\n",
        "",
        "ledgers/test_forced.py::test_force_is_an_operators_right",
    ),
    Defect(
        "search_path of one function not pinned",
        "sql/core/clock.sql",
        "returns uuid[]\nlanguage sql\nvolatile\nset search_path = pg_catalog, pg_temp",
        "returns uuid[]\nlanguage sql\nvolatile",
        "sql/test_schema.py::test_every_function_pins_its_search_path_and_says_what_it_does",
    ),
    Defect(
        "EXECUTE left to PUBLIC",
        "sql/privileges.sql",
        "revoke all on all functions in schema pgflow from public;",
        "",
        "sql/test_schema.py::test_nobody_else_may_do_anything",
    ),
    Defect(
        "helper that runs with the owner's rights",
        "sql/core/clock.sql",
        "returns uuid[]\nlanguage sql\nvolatile\nset search_path",
        "returns uuid[]\nlanguage sql\nvolatile\nsecurity definer\nset search_path",
        "sql/test_schema.py::test_only_what_is_called_from_outside_runs_with_the_owners_rights",
    ),
    Defect(
        "functions that a server compiles",
        "sql/privileges.sql",
        "execute format('alter function %s set jit = off', fn.signature);",
        "null;",
        "sql/test_schema.py::test_nothing_that_is_called_from_outside_is_ever_compiled",
    ),
    Defect(
        "a pooler's session changed for others",
        "pgflow/_db/connect.py",
        "case when pg_backend_pid() = %s then",
        "case when %s <> 0 then",
        "sql/test_jit.py::test_a_session_that_a_pooler_lends_to_others_is_left_as_it_is",
    ),
    Defect(
        "tables that workers may write",
        "sql/privileges.sql",
        "execute format('grant usage on schema pgflow to %I', role_name);",
        "execute format('grant usage on schema pgflow to %1$I; grant insert on all tables in "
        "schema pgflow to %1$I', role_name);",
        "sql/test_schema.py::test_a_role_may_read_the_views_and_touch_no_table",
    ),
    Defect(
        "installers side by side",
        "pgflow/schema/_install.py",
        "select pg_catalog.pg_advisory_xact_lock({key});",
        "select {key};",
        "sql/test_schema.py::test_installers_at_once_take_turns",
    ),
    Defect(
        "text of an error stored as it is",
        "pgflow/_model/exceptions.py",
        'return text.replace("\\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", '
        '"replace").decode()',
        "return text",
        "model/test_failures.py::test_nul_and_lone_surrogates_are_replaced_in_texts",
    ),
    Defect(
        "text of an error in the log",
        "pgflow/_worker/bodies.py",
        'kind = result.error["type"].removeprefix("builtins.")',
        'kind = result.error["message"]',
        "flow/test_logging.py::test_no_password_input_result_or_text_of_an_error_is_in_the_log_of_a_worker",
    ),
    Defect(
        "key of another tenant",
        "sql/runs/signal.sql",
        'where tenant = chain_of_.tenant collate "default" and key',
        "where key",
        "sql/test_sql_start.py::test_tenants_have_keys_of_their_own",
    ),
)

EFFECTS = (
    Defect(
        "unknown effect tried again blindly",
        "pgflow/_engine/effects.py",
        'return "ask" if agreed.can_ask else None',
        'return "repeat"',
        "ledgers/test_effects.py::test_a_lost_reply_is_asked_after_and_never_sent_again",
        also=(
            ('if plan == "ask" and self.asks == 1:', "if self.asks == 1:"),
            ("self.allow(Ground.REMEMBERED)", 'self.allow("p")'),
        ),
    ),
    Defect(
        "any exception of an effect is a failure",
        "pgflow/_worker/effect_bodies.py",
        "except call.spec.raises as refusal:",
        "except Exception as refusal:",
        "ledgers/test_effects.py::test_a_lost_reply_is_asked_after_and_never_sent_again",
    ),
    Defect(
        "acts though what it expects has changed",
        "pgflow/_worker/effect_bodies.py",
        "if observed != call.expected:",
        "if False:",
        "ledgers/test_expect.py::test_an_effect_does_not_act_when_what_it_expects_has_changed",
    ),
    Defect(
        "judged by what it has done itself",
        "pgflow/_worker/effect_bodies.py",
        "if call.may_have_acted:",
        "if False:",
        "ledgers/test_expect.py::test_what_may_have_acted_is_not_judged_by_what_is_observed_after_it",
    ),
    Defect(
        "lost Ref handed back",
        "pgflow/_engine/release.py",
        "elif call.number in self._claim.lost and",
        "elif False and",
        "flow/test_refs.py::test_a_lost_ref_is_made_anew_and_not_handed_back",
    ),
    Defect(
        "act repeated for a lost Ref",
        "pgflow/_engine/renewal.py",
        "if (\n            call.spec.effect not in (StepKind.READ, StepKind.STEP)\n"
        "            or unit.kind != Kind.STEP_COMPLETED\n        ):",
        "if False:",
        "flow/test_refs.py::test_an_act_is_not_repeated_for_a_lost_ref_and_the_run_goes_on_once_it_is_there_again",
    ),
    Defect(
        "renewed result forgotten by the next replay",
        "pgflow/_engine/journal.py",
        "self.renewed[unit.call] = unit.payload",
        "self.renewed[0] = unit.payload",
        "flow/test_refs.py::test_what_was_made_anew_counts_in_every_replay_from_then_on",
    ),
    Defect(
        "paged before anybody was told",
        "sql/ops/page.sql",
        "next_at = t + lease_seconds * interval '1 second'",
        "next_at = 'infinity'",
        "worker/test_pager.py::test_a_worker_lost_between_the_call_and_its_record_is_followed_by_another_call",
    ),
    Defect(
        "new need taken for one that was told",
        "sql/ledgers/effects.sql",
        "case when g.kind = 'U' and g.delay is null then pgflow.micros_(t) end",
        "null::bigint",
        "worker/test_pager.py::test_an_effect_that_needs_somebody_again_is_told_again",
    ),
    Defect(
        "told by whoever has lost the page",
        "sql/ops/page.sql",
        " and p.next_at = page_sent.leased_until",
        "",
        "worker/test_pager.py::test_what_is_said_of_a_call_whose_lease_is_over_counts_for_nothing",
    ),
    Defect(
        "pager ended by a hook that is cancelled",
        "pgflow/_worker/threads.py",
        "return task is not None and not task.cancelling()",
        "return False",
        "worker/test_pager.py::test_a_hook_that_is_cancelled_has_told_nobody",
    ),
    Defect(
        "absent believed at once",
        "sql/ledgers/effects.sql",
        "coalesce(e.ground = 'a' and last_at + wait <= asked_at, false)",
        "e.ground = 'a'",
        "ledgers/test_effects.py::test_absent_is_believed_only_when_no_attempt_can_be_under_way",
    ),
    Defect(
        "key sent again past its window",
        "sql/ledgers/effects.sql",
        "e.ground = 'w' and first_at + wait > t",
        "e.ground = 'w'",
        "ledgers/test_effects.py::test_within_the_window_the_same_key_is_sent_again_and_past_it_it_is_settled_first",
    ),
    Defect(
        "a key sent again that arrives after the window",
        "pgflow/_flow/ledgers/effect.py",
        "(self.terms.dedup_window - settle_after)",
        "self.terms.dedup_window",
        "ledgers/test_effects.py::test_what_could_arrive_only_after_the_window_is_not_sent_again",
    ),
    Defect(
        "an act begun when it could still be under way as absent is believed",
        "pgflow/_worker/effect_bodies.py",
        "> BEGIN_WITHIN * slack_seconds",
        "> 5.0",
        "ledgers/test_effects_in_trouble.py::test_an_act_begins_only_while_it_surely_ends_before_absent_is_believed",
    ),
    Defect(
        "key used again after continue_as_new",
        "pgflow/_model/claims.py",
        'return self.root if self.generation == 1 else f"{self.root}~{self.generation}"',
        "return self.root",
        "ledgers/test_effects.py::test_a_next_generation_has_keys_of_its_own",
    ),
    Defect(
        "run ends while it owes",
        "pgflow/_engine/execution.py",
        "if not self.agenda.owes and (self._is_undoing",
        "if (self._is_undoing",
        "ledgers/test_effects.py::test_a_run_that_owes_does_not_end_before_its_effect_is_confirmed",
    ),
    Defect(
        "effect attempted before its intent is durable",
        "pgflow/_engine/agenda.py",
        """        call.state = "unlicensed"
        if self.new_effects is None:
            self.new_effects = []
        self.new_effects.append(call)
""",
        """        call.stage, call.attempts = "attempted", call.attempts + 1
        self.make_startable(call)
""",
        "ledgers/test_effects.py::test_an_effect_is_intended_before_it_acts_and_confirmed_after",
    ),
    Defect(
        "taken back the first first",
        "pgflow/_flow/ledgers/saga.py",
        "effects.pop()",
        "effects.pop(0)",
        "ledgers/test_sagas.py::test_what_was_done_is_taken_back_the_last_first",
    ),
    Defect(
        "a carried saga forgets its stack",
        "pgflow/_engine/end.py",
        'said["saga"] = self._handed_on',
        "pass",
        "ledgers/test_carried_sagas.py::test_all_generations_are_taken_back_the_last_first",
    ),
    Defect(
        "a child does not say where its effects stand in the code",
        "sql/ledgers/saga.sql",
        "coalesce(o.code, '')",
        "''",
        "ledgers/test_family_sagas.py::test_where_two_effects_have_one_name_a_childs_is_taken_back_as_the_one_that_it_was",
    ),
    Defect(
        "a dropped effect is looked for by its name alone",
        "pgflow/_worker/undoing.py",
        'dropped.note.get("code") or ',
        "",
        "again/test_rewind_effects.py::test_where_two_effects_have_one_name_the_dropped_one_is_taken_back_as_the_one_that_it_was",
    ),
    Defect(
        "a child's effects stay when its parent's saga fails",
        "pgflow/_engine/release.py",
        "call.take_over(left, call.number)",
        "pass",
        "ledgers/test_family_sagas.py::test_what_a_completed_child_did_is_taken_back_among_what_its_parent_did",
    ),
    Defect(
        "a run that owes completes",
        "pgflow/_engine/execution.py",
        "if not self.agenda.owes and (self._is_undoing or not self.end.awaits_discharge):",
        "if not self.agenda.owes:",
        "obligations/test_obligations.py::test_a_run_that_owes_does_not_complete_until_it_is_discharged",
    ),
    Defect(
        "what the end of the code leaves behind stays reserved",
        "pgflow/_engine/agenda.py",
        "if isinstance(call, EffectCall) or call.number in self.left_behind",
        "if isinstance(call, EffectCall)",
        "obligations/test_obligations_engine.py::"
        "test_what_the_code_has_left_behind_before_its_worker_was_lost_is_given_back",
    ),
    Defect(
        "a batch has pools before what a sweep may hold",
        "sql/ledgers/budgets.sql",
        "and o.kind = 'obligation'\n  order by o.run_id, o.call for update;",
        "and false;",
        "obligations/test_obligations.py::test_a_batch_that_draws_has_the_rows_of_obligations_before_those_of_pools",
    ),
    Defect(
        "what is owed is dropped by the next generation",
        "pgflow/_engine/end.py",
        "if self._agenda.leaves_obligations:",
        "if False:",
        "obligations/test_obligations.py::test_a_run_that_continues_as_new_carries_what_it_owes",
    ),
    Defect(
        "a promise made twice by a restart",
        "pgflow/_engine/obligations.py",
        "if owed.is_dropped and",
        "if False and",
        "obligations/test_obligations.py::test_a_restart_hands_on_the_promise_and_does_not_make_it_twice",
    ),
    Defect(
        "a fork that owes its origin's promises",
        "pgflow/_engine/obligations.py",
        "is_own = key.startswith(self._claim.root)",
        "is_own = True",
        "obligations/test_obligations.py::test_a_fork_that_begins_again_owes_nothing_of_its_origin_either",
    ),
    Defect(
        "word that crosses the end of its run is lost",
        "sql/runs/finish.sql",
        "select pgflow.hear_late_(chains, t) where chains <> '{}';",
        "select null;",
        "obligations/test_obligations.py::test_a_word_that_crosses_the_end_of_its_run_counts",
    ),
    Defect(
        "what a failed run owes is nobody's",
        "sql/runs/commit.sql",
        "perform pgflow.leave_obligations_(ended, t);",
        "null;",
        "obligations/test_obligations.py::test_what_a_failed_run_owes_stays_for_a_person",
    ),
    Defect(
        "a breach that happens with each sweep",
        "sql/ledgers/obligations.sql",
        "|| jsonb_build_object('state', 'breached')",
        "|| '{}'",
        "obligations/test_obligations.py::test_two_sweeps_at_once_breach_an_obligation_once",
    ),
    Defect(
        "a fork that begins again owes its origin's promises",
        "pgflow/_engine/obligations.py",
        "is_own = key.startswith(self._claim.root)",
        "is_own = self._claim.generation > 1 or key.startswith(self._claim.root)",
        "obligations/test_obligations.py::test_a_fork_that_begins_again_owes_nothing_of_its_origin_either",
    ),
    Defect(
        "word of an obligation goes to a generation that has handed it on",
        "sql/ledgers/effects.sql",
        "and o.run_id > me",
        "and false",
        "obligations/test_obligations.py::test_a_rewind_takes_along_what_was_said_and_not_heard",
    ),
    Defect(
        "word of an obligation wakes only who owed it then",
        "sql/runs/wake.sql",
        "and (s.run_id = p.run_id or s.payload->>'obligation' is not null) offset 0)",
        "and s.run_id = p.run_id offset 0)",
        "obligations/test_obligations.py::test_a_word_that_crosses_the_next_generation_counts_and_holds_nobody_up",
    ),
    Defect(
        "word into the journal of an ended run while it is rewound",
        "sql/ledgers/obligations.sql",
        "perform pgflow.lock_chain_(chain);",
        "null;",
        "obligations/test_obligations.py::test_a_word_that_crosses_a_restart_counts",
    ),
    Defect(
        "word that could not be recorded is looked for no more",
        "sql/ledgers/obligations.sql",
        "where not exists (select from pgflow.nudge n where n.chain_id = word.chain_id);",
        "where false;",
        "obligations/test_obligations.py::test_a_word_that_retention_keeps_from_being_recorded_is_looked_for_again",
    ),
    Defect(
        "a breach by the terms of the newest code",
        "sql/ledgers/obligations.sql",
        "and u.payload->>'key' = debt.detail->>'key' order by u.seq limit 1;",
        "and u.payload->>'key' = debt.detail->>'key' order by u.seq desc limit 1;",
        "obligations/test_obligations.py::test_a_breach_does_what_was_agreed_on_when_it_was_promised",
    ),
    Defect(
        "a client that discharges the debt of an effect",
        "sql/ledgers/obligations.sql",
        "perform pgflow.check_may_settle_(obligation_key);",
        "null;",
        "obligations/test_obligations.py::test_only_who_may_settle_effects_discharges_the_debt_of_one",
    ),
    Defect(
        "a poll that hurries for a locked obligation",
        "sql/runs/wake.sql",
        "and o.detail->>'state' = 'open' and o.due_at > t",
        "and o.detail->>'state' = 'open'",
        "obligations/test_obligations.py::test_what_a_caller_keeps_locked_makes_no_poll_hurry",
    ),
    Defect(
        "what was closed behind the cut is owed again",
        "sql/ledgers/obligations.sql",
        "and d.payload->>'verdict' <> 'handed_on'\n    order by d.seq",
        "and false\n    order by d.seq",
        "obligations/test_obligations.py::test_what_a_dropped_part_has_discharged_stays_so",
    ),
    Defect(
        "silence by a clock read before the beat",
        "sql/ledgers/beats.sql",
        "if late.silent_at > t then",
        "if false then",
        "ledgers/test_silent_effects.py::test_a_sweep_passes_over_a_beat_under_way_and_finds_it_later",
    ),
    Defect(
        "a beat after the time-out counts",
        "sql/ledgers/beats.sql",
        "<> 'accepted' or beat.beat_at + beat.timeout_seconds * interval '1 second' <= t then",
        "<> 'accepted' then",
        "ledgers/test_silent_effects.py::test_a_beat_waits_for_a_sweep_and_learns_that_it_came_too_late",
    ),
    Defect(
        "what is silent is sent again",
        "pgflow/_engine/effects.py",
        "may_repeat = not self.was_accepted",
        "may_repeat = True",
        "ledgers/test_silent_effects.py::test_what_is_silent_is_asked_after_with_what_its_last_beat_said",
    ),
    Defect(
        "silence forgotten by the next worker",
        "pgflow/_engine/ledger.py",
        "for call in [c for c in self._agenda.accepted.values() if c.stage == Stage.SILENT]:",
        "for call in ():",
        "ledgers/test_silent_effects.py::test_silence_that_a_dying_worker_has_taken_is_found_by_the_next",
    ),
    Defect(
        "words of an older journal that nobody understands",
        "pgflow/_model/reasons.py",
        'payload.get("reason") or _CODES.get(payload.get("why") or "", "")',
        'payload.get("reason") or ""',
        "ledgers/test_effects_in_trouble.py::test_a_precondition_that_an_earlier_attempt_has_spoilt_proves_nothing[a journal from before the codes]",
    ),
    Defect(
        "cancel whose reason is lost on its way",
        "sql/runs/answer.sql",
        "'by', c.sent_by, 'reason', c.payload->'reason')",
        "'by', c.sent_by)",
        "flow/test_children.py::test_when_a_parent_ends_its_children_are_cancelled_level_by_level[returns]",
    ),
    Defect(
        "command for a shell that quotes nothing",
        "cli/pgflow_cli/runs/showing.py",
        "{shlex.quote(run['reason_detail']['signals'][0])}",
        "{run['reason_detail']['signals'][0]}",
        "cli/test_cli_list.py::test_what_to_do_is_a_command_that_a_shell_takes_as_it_stands",
    ),
    Defect(
        "silence behind a cut is not looked for again",
        "sql/again/fork.sql",
        "select pgflow.move_beats_(origin, o.call, heir, o.call) from pgflow.owed o\n  where "
        "o.run_id = heir and o.kind = 'effect' and o.detail ? 'ref'",
        "select 1",
        "ledgers/test_silent_effects.py::test_silence_behind_a_cut_is_found_again",
    ),
    Defect(
        "accepted taken back before it is confirmed",
        "pgflow/_engine/effects.py",
        "if self.takes_back.is_owed:",
        "if False:",
        "ledgers/test_carried_sagas.py::test_what_was_accepted_is_taken_back_once_it_is_confirmed_and_left_if_it_was_rejected",
    ),
    Defect(
        "events in a stage in which they cannot come",
        "pgflow/_engine/effects.py",
        "to = _MOVES[event].get(self.stage)",
        "to = _MOVES[event].get(self.stage, self.stage)",
        "engine/test_calls.py::test_what_is_closed_stays_as_it_is[confirmed]",
    ),
    Defect(
        "silence before its acceptance is released",
        "pgflow/_engine/effects.py",
        "Stage.HUSHED: Stage.SILENT,",
        "Stage.HUSHED: Stage.ACCEPTED,",
        "engine/test_calls.py::test_marks_say_the_same_before_and_after_the_acceptance_is_released[silent]",
    ),
    Defect(
        "compensation by a fork",
        "pgflow/_engine/ledger.py",
        "if not self.is_foreign(effect):\n            return True",
        "if True:\n            return True",
        "ledgers/test_carried_sagas.py::test_a_fork_takes_back_nothing_of_its_origins",
    ),
    Defect(
        "refused compensation taken for done",
        "pgflow/_flow/ledgers/effect.py",
        "has_body=said.has_body,",
        "has_body=True,",
        "ledgers/test_sagas.py::test_what_cannot_be_taken_back_leaves_the_run_stuck_and_the_debt_open",
    ),
    Defect(
        "unknown left behind by a saga",
        "pgflow/_flow/ledgers/saga.py",
        """        cancelled = await _closed(scope, call) or cancelled
        if""",
        """        if""",
        "ledgers/test_sagas.py::test_what_is_not_known_is_settled_before_it_is_taken_back",
    ),
    Defect(
        "rewound run goes on though a compensation has failed",
        "pgflow/_worker/undoing.py",
        "self._issued is None or not is_done(self._issued)",
        "self._issued is None",
        "again/test_rewind_effects.py::test_a_run_goes_on_only_after_the_last_compensation",
    ),
    Defect(
        "result of another request reused",
        "pgflow/_engine/ledger.py",
        'known = heritage.effects.get((f"{place}{name_in_key(name)}/{item}", args_hash))',
        "known = next((known for (at, _), known in heritage.effects.items() if at == "
        'f"{place}{name_in_key(name)}/{item}"), None)',
        "again/test_rewind_effects.py::test_another_request_is_another_act_under_another_key",
    ),
    Defect(
        "child of other arguments taken over",
        "pgflow/_engine/children.py",
        "if is_same and json.loads(call.request.input) == json.loads(known.input):",
        "if is_same:",
        "again/test_rewind_effects.py::test_a_child_that_has_completed_is_not_started_again",
    ),
    Defect(
        "a plan's SQL writes another table",
        "pgflow/_flow/ledgers/undo_plan/propose.py",
        "strange = statement.writes - tables",
        "strange = statement.writes - statement.writes",
        "ledgers/test_undo_plans.py::test_a_statement_that_could_write_anything_else_is_refused",
    ),
    Defect(
        "a plan's SQL reads another table",
        "pgflow/_flow/ledgers/undo_plan/propose.py",
        "strange = statement.reads - tables",
        "strange = statement.reads - statement.reads",
        "ledgers/test_undo_plans.py::test_a_statement_that_could_write_anything_else_is_refused",
    ),
    Defect(
        "a text of a plan is run with other values than it was given",
        "pgflow/_flow/ledgers/undo_plan/statements.py",
        "if _values(written) != values:",
        "if _values(written) != _values(written):",
        "ledgers/test_undo_plans.py::test_a_value_that_the_parser_has_changed_is_found_in_the_texts",
    ),
    Defect(
        "a plan's SQL writes another table by a trigger",
        "pgflow/_flow/ledgers/undo_plan/propose.py",
        "- set(map(table_named, tables))",
        "- {Table(*one) for one in written}",
        "ledgers/test_undo_plans.py::test_what_a_statement_writes_behind_its_back_is_rolled_back",
    ),
    Defect(
        "a plan that is refused is run",
        "pgflow/_flow/ledgers/undo_plan/run.py",
        "if review.refused is not None:",
        "if review.refused is not None and not review.steps:",
        "ledgers/test_undo_plans.py::test_a_plan_with_one_step_that_is_refused_is_refused_as_a_whole",
    ),
    Defect(
        "force that forgets what was done",
        "sql/runs/wake.sql",
        "select o.seq into last_seq from pgflow.owe_by_force_(me, chain, t, last_seq) o;",
        "select w.seq into last_seq from pgflow.take_words_(me, chain, 0, t, true, last_seq) w;",
        "ledgers/test_forced.py::test_what_was_done_and_not_taken_back_stays_owed",
    ),
    Defect(
        "charge closed though its refund failed after force",
        "sql/ledgers/effects.sql",
        "if debt.reason is not null then",
        "if false then",
        "ledgers/test_forced.py::test_a_refund_that_was_not_done_leaves_the_charge_owed",
    ),
    Defect(
        "effects of a child lost with its forced parent",
        "sql/runs/finish.sql",
        "  perform pgflow.owe_for_parent_(run_ids, t);\n",
        "",
        "ledgers/test_forced.py::test_a_child_that_completes_after_its_parent_was_forced_owes_what_it_did",
    ),
    Defect(
        "charge that a person has refunded is gone on from",
        "sql/again/inherit.sql",
        "d.payload->>'verdict' = 'taken_back'",
        "false",
        "ledgers/test_forced.py::test_what_a_person_has_taken_back_is_done_no_more",
    ),
    Defect(
        "restart that takes back ended by an ordinary cancel",
        "sql/again/fork.sql",
        "when cut > 0 or note->>'said' = 'compensate'\n",
        "when cut > 0\n",
        "ledgers/test_forced.py::test_a_cancel_before_the_code_goes_on_still_takes_back_what_a_restart_was_told_to",
    ),
    Defect(
        "debt forgotten with its outcome unknown",
        "sql/ledgers/effects.sql",
        "where (e->>3 in ('C', 'F') or",
        "where (e->>3 in ('C', 'F', 'U') or",
        "ledgers/test_effects.py::test_without_a_way_to_ask_the_run_is_stuck_and_a_person_decides",
    ),
)

SHOWN = (
    Defect(
        "step that was cut off shown as tried once",
        "sql/views/runs.sql",
        "case when f.begun_by is null or coalesce(f.begun_by = any(f.ended_by), false) then 0 else "
        "1 end as attempts",
        "0 as attempts",
        "sql/test_sql_views.py::test_a_step_that_another_worker_did_again_was_begun_more_than_once",
    ),
    Defect(
        "step that was cut off passed over among those begun twice",
        "sql/views/runs.sql",
        "having min(u.token) <> max(u.token) or bool_or",
        "having bool_or",
        "sql/test_sql_views.py::test_a_run_whose_only_trouble_was_a_lost_worker_has_repeated_steps",
    ),
    Defect(
        "transaction without its key",
        "pgflow/_engine/flushing.py",
        "text,\n            key=call.key or str(call.ordinal),",
        "text,",
        "transactions/test_transactions.py::test_a_transaction_is_found_by_the_key_that_its_body_had",
    ),
    Defect(
        "recovery drawn where the step was done again",
        "pgflow/inspect/timeline.py",
        "0, MARK, RECOVERED, self._heard_at,",
        "0, MARK, RECOVERED, unit.at,",
        "cli/test_cli_list.py::test_a_lease_that_goes_on_without_having_been_woken_is_a_recovery",
    ),
)

PROOF = (
    Defect(
        "proof of changed files stamped with their commit",
        "tests/proof/report.py",
        '"is_dirty": began.is_dirty or began != ended,',
        '"is_dirty": False,',
        "proof/test_proof.py::test_the_page_says_when_the_tree_was_dirty",
    ),
    Defect(
        "runs of two promises summed twice",
        "tests/proof/report.py",
        "runs=sum(line.runs for line",
        "runs=sum(line.runs + line.shared for line",
        "proof/test_proof.py::test_no_sum_counts_what_two_promises_share_twice",
    ),
    Defect(
        "refused commits of a path counted under each of its promises",
        "tests/commitfaults.py",
        "for t in of if t.path not in counted)",
        "for t in of)",
        "proof/test_proof.py::test_a_path_that_is_about_several_promises_is_counted_under_one",
    ),
)

SERVERS = (
    Defect(
        "heart that waits for a frozen server",
        "pgflow/_worker/heartbeat.py",
        "connection.pgconn.socket,\n            self._rhythm.patience,",
        "connection.pgconn.socket,\n            3600.0,",
        "db/test_deadlines.py::test_a_heart_that_hears_nothing_asks_on_another_connection",
    ),
    Defect(
        "deadline on what a body asks for",
        "pgflow/_transactions/protocol.py",
        "                return body(transaction.connection)",
        "                with Limit(cord(), COMMIT_SECONDS):\n                    return "
        "body(transaction.connection)",
        "db/test_deadlines.py::test_what_a_body_asks_for_may_take_its_time[psycopg]",
    ),
    Defect(
        "fence that waits for a frozen server",
        "pgflow/_transactions/protocol.py",
        """                with Limit(cord(), op.args[1]):
                    return run_on""",
        """                with Limit(None, op.args[1]):
                    return run_on""",
        "db/test_deadlines.py::test_the_engines_own_statements_in_a_transaction_have_a_deadline[session]",
    ),
    Defect(
        "transaction left waiting for a server that is the primary no more",
        "pgflow/_worker/open_transactions.py",
        "if transaction.began_at < left_at:",
        "if transaction.began_at > left_at:",
        "db/test_deadlines.py::test_transactions_with_a_server_that_is_the_primary_no_more_are_cut_and_run_again[psycopg]",
    ),
    Defect(
        "client's long statement given up though its server is there",
        "pgflow/_db/deadlines.py",
        "            return self._is_alive()",
        "            return False",
        "db/test_deadlines.py::test_a_long_statement_of_a_client_is_waited_for_while_its_server_is_there",
    ),
    Defect(
        "hole left by a transactional step on a server that lacks what was acknowledged",
        "sql/runs/transaction.sql",
        "if durable_seq > 0 and not exists",
        "if durable_seq < 0 and not exists",
        "worker/test_losses.py::test_a_transactional_step_does_not_go_on_where_an_acknowledged_unit_is_lost",
    ),
    Defect(
        "hole left by a batch on a server that lacks what was acknowledged",
        "pgflow/_worker/committer.py",
        "flushing.told_at < opened_at",
        "flushing.told_at < 0",
        "worker/test_losses.py::test_a_run_goes_on_from_what_is_left_after_a_failover_has_lost_what_was_acknowledged[after another run]",
    ),
    Defect(
        "loss that nobody is told of",
        "pgflow/_worker/acknowledged.py",
        "if stretch.flushed > kept:",
        "if False:",
        "worker/test_losses.py::test_what_was_acknowledged_and_is_gone_is_told_run_by_run",
    ),
    Defect(
        "loss that a new primary hides which was restarted",
        "pgflow/_worker/acknowledged.py",
        "known = kept if last.timeline == answer.timeline else -1",
        "known = kept",
        "worker/test_losses.py::test_a_loss_is_told_by_a_new_primary_that_was_restarted_and_has_forgotten_where_it_took_over[stopped]",
    ),
    Defect(
        "result of the run that has the number of a lost one",
        "pgflow/_client/handles.py",
        'if ended.status == "gone" or ended.key != self.key:',
        'if ended.status == "gone":',
        "client/test_runs.py::test_whoever_waits_for_a_run_that_a_failover_has_lost_gets_no_other_runs_result",
    ),
    Defect(
        "pool that lends connections to a server that was left",
        "pgflow/_db/_sync_pool.py",
        """        if is_left(connection):
            connection.close()
    return""",
        """        pass
    return""",
        "db/test_deadlines.py::test_a_client_leaves_every_connection_to_a_server_that_is_not_there",
    ),
    Defect(
        "listener that waits for a frozen server",
        "pgflow/_worker/listener.py",
        "connection.pgconn.socket, BEGIN_SECONDS, gave_up",
        "connection.pgconn.socket, 3600.0, gave_up",
        "db/test_deadlines.py::test_a_listener_whose_server_is_frozen_listens_anew",
    ),
    Defect(
        "client that waits for a frozen server",
        "pgflow/_db/_sync_pool.py",
        "connection = pool.getconn()\n    connection.patience_seconds = patience_seconds",
        "connection = pool.getconn()\n    del patience_seconds",
        "db/test_deadlines.py::test_a_client_leaves_a_server_that_is_not_there",
    ),
    Defect(
        "commits that are believed to reach a standby which is not here",
        "cli/pgflow_cli/ops/checks/server.py",
        'if waits and row["behind"] < row["standbys"]:',
        "if waits:",
        "proof/test_failover.py::test_doctor_says_what_a_failover_to_an_asynchronous_standby_would_lose",
    ),
    Defect(
        "commands that read a standby",
        "pgflow/_db/connect.py",
        '"target_session_attrs": "primary" if pq.version() >= PRIMARY_KNOWN_SINCE else '
        '"read-write",',
        '"target_session_attrs": "any",',
        "proof/test_failover.py::test_of_several_hosts_every_command_finds_the_one_that_takes_writes[sql select pg_is_in_recovery() as standby]",
    ),
    Defect(
        "lost COMMIT of another server taken for a failure of the step",
        "sql/runs/transaction.sql",
        "exception when invalid_parameter_value then",
        "exception when division_by_zero then",
        "sql/test_sql_commit.py::test_a_step_and_the_writes_of_the_application_are_one_transaction",
    ),
)

UPGRADES = (
    Defect(
        "journal pages cut by call",
        "sql/runs/claim.sql",
        "seq > after_seq order by seq limit 2000",
        "seq > after_seq order by call limit 2000",
        "sql/test_sql_claim.py::test_a_long_journal_comes_in_pages_in_the_order_in_which_it_was_recorded",
    ),
    Defect(
        "journal pages ordered by call",
        "sql/runs/claim.sql",
        ") order by u.seq)::text",
        ") order by u.call)::text",
        "sql/test_sql_claim.py::test_a_long_journal_comes_in_pages_in_the_order_in_which_it_was_recorded",
    ),
    Defect(
        "worker that does not see its schema change",
        "pgflow/_worker/upkeep.py",
        "self._compare_schema(await self._control.ask(worker_calls.read_stamp()))",
        "pass",
        "sql/test_upgrades.py::test_a_worker_says_once_that_the_schema_is_newer_and_goes_on",
    ),
    Defect(
        "claims beside a schema that breaks this version",
        "pgflow/_worker/claims.py",
        "if self._is_outgrown:\n            return 0",
        "if False:\n            return 0",
        "sql/test_upgrades.py::test_a_worker_takes_no_further_runs_from_a_schema_that_its_code_cannot_work_with",
        also=(
            (
                "if self._life.failed.is_set():\n            return 0",
                "if False:\n            return 0",
            ),
        ),
    ),
    Defect(
        "call of a landed worker dropped",
        "sql/ops/worker.sql",
        "create or replace function pgflow.leave_worker(worker_id int)",
        "create or replace function pgflow.leave_worker(worker_id int, reason text)",
        "sql/test_upgrades.py::test_what_a_landed_version_calls_stays",
        also=(
            (
                "comment on function pgflow.leave_worker(int)",
                "comment on function pgflow.leave_worker(int, text)",
            ),
        ),
    ),
    Defect(
        "errors of other drivers taken for the body's",
        "pgflow/_db/drivers.py",
        '_OTHERS = ("asyncpg", "psycopg2")',
        '_OTHERS = ("none",)',
        "transactions/test_sqlalchemy.py::test_a_connection_that_is_lost_is_no_outcome",
    ),
    Defect(
        "ledger booked by the snapshot of a transaction",
        "pgflow/_engine/flushing.py",
        "or self._buffer.has_ledger\n            or self._code.driver.busy",
        "or self._code.driver.busy",
        "engine/test_engine_order.py::test_no_fence_takes_along_what_is_to_be_booked",
    ),
    Defect(
        "labels of a run left as they were",
        "sql/runs/labels.sql",
        "if now is not null then",
        "if false then",
        "flow/test_labels.py::test_a_run_is_found_by_the_labels_that_it_has_now_and_replays_with_those_of_then",
    ),
    Defect(
        "function dropped under its call",
        "pgflow/schema/_shapes.py",
        "execute format('alter function %s rename to former_%s', one.signature, one.oid);",
        "execute format('drop function %s', one.signature);",
        "sql/test_upgrades.py::test_a_call_that_an_upgrade_has_overtaken_comes_to_its_end",
    ),
    Defect(
        "functions made anew where they can be replaced",
        "pgflow/schema/_shapes.py",
        "is not distinct from (\n          p.proargtypes",
        "is distinct from (\n          p.proargtypes",
        "sql/test_schema.py::test_functions_that_are_applied_again_stay_the_same_ones",
    ),
    Defect(
        "cancel said once",
        "pgflow/_worker/supervision.py",
        "await asyncio.wait(left, timeout=CANCEL_AGAIN_SECONDS)",
        "await asyncio.wait(left)",
        "worker/test_supervision.py::test_a_task_that_has_dropped_a_cancel_is_cancelled_again",
    ),
    Defect(
        "landed migration changed in place",
        "migrations/0006_saga.sql",
        "create table",
        "create  table",
        "sql/test_migrations.py::test_landed_migrations_are_frozen",
    ),
)

NAMES = (
    Defect(
        "lanes that are read once",
        "pgflow/_worker/lanes.py",
        "self._foreign.add(lane)\n                self._wanted.set()",
        "self._foreign.add(lane)",
        "worker/test_versions.py::test_a_lane_that_is_new_is_served_as_soon_as_somebody_tells_of_it",
    ),
    Defect(
        "newest lane that polls do not look at",
        "pgflow/_worker/lanes.py",
        "if (newest or 0) > self._newest:",
        "if False and (newest or 0) > self._newest:",
        "worker/test_versions.py::test_a_run_started_with_a_version_that_a_worker_has_is_taken_by_it_though_nothing_was_pinned_before",
        also=(("LANES_EVERY_SECONDS = 5.0", "LANES_EVERY_SECONDS = 500.0"),),
    ),
    Defect(
        "waiting for ever for a run that was pruned",
        "sql/runs/result.sql",
        "or h.run_id is not null or n.run_id is null",
        "or h.run_id is not null",
        "client/test_runs.py::test_whoever_waits_for_a_run_that_is_pruned_meanwhile_is_told_that_it_is_gone",
    ),
    Defect(
        "dropped values of a stream that are read",
        "sql/runs/result.sql",
        "and e.seq <= coalesce(g.upto, 2147483647) and",
        "and",
        "flow/test_state_and_streams.py::test_what_a_rewind_has_dropped_of_a_stream_is_history_and_no_more_read",
    ),
    Defect(
        "rewind that counts over a continue_as_new",
        "sql/runs/result.sql",
        "partition by s.begun_anew order by",
        "order by",
        "flow/test_state_and_streams.py::test_a_rewind_drops_nothing_of_the_generations_that_had_continued_as_new",
    ),
    Defect(
        "a default that is another input than none",
        "sql/runs/start.sql",
        "else coalesce(defaults::jsonb, '{}') || one::jsonb =",
        "else one::jsonb =",
        "client/test_taken_keys.py::test_a_parameter_that_is_left_out_is_the_same_as_its_default",
    ),
    Defect(
        "numbers used up by starts of known keys",
        "sql/runs/start.sql",
        "or not exists (select from pgflow.run_key k where k.tenant = insert_run_.tenant and k.key "
        "= run_key)",
        "or true",
        "client/test_taken_keys.py::test_starts_of_known_keys_use_up_no_numbers_of_runs",
    ),
    Defect(
        "start that is refused the run it has made itself",
        "sql/runs/start.sql",
        "if if_taken = 'attach' or pgflow.is_own_(run.run_id, start_id) then",
        "if if_taken = 'attach' then",
        "client/test_taken_keys.py::test_reject_takes_no_run_of_somebody_else_and_its_own_when_it_is_sent_again",
    ),
    Defect(
        "replacement beside the run that it replaces",
        "sql/runs/start.sql",
        "order by r.run_id limit max))\n        and not pgflow.awaits_end_(p.run_id)",
        "order by r.run_id limit max))",
        "client/test_taken_keys.py::test_a_run_that_replaces_waits_as_long_as_the_other_is_open_and_says_so",
    ),
    Defect(
        "replacement that waits for the last run only",
        "sql/runs/start.sql",
        "select me, r.waits_for from pgflow.replacement r where r.run_id = old_run\n  union ",
        "",
        "client/test_taken_keys.py::test_what_is_replaced_again_before_it_began_ends_and_the_last_waits_for_all",
    ),
    Defect(
        "replacement that a resume lets begin too early",
        "sql/runs/wake.sql",
        "is_early := starts_at is not null or pgflow.awaits_end_(me);",
        "is_early := starts_at is not null;",
        "client/test_taken_keys.py::test_a_run_that_replaces_and_is_paused_meanwhile_begins_after_both[it is resumed first]",
    ),
    Defect(
        "key of a message forgotten with the message",
        "sql/runs/signal.sql",
        "is_first := found;",
        "is_first := found or not exists (select from pgflow.signal s where s.chain_id = chain);",
        "client/test_sent_keys.py::test_a_message_sent_again_after_it_was_taken_is_still_one",
    ),
    Defect(
        "key of a message that outlives its run",
        "sql/ops/retention.sql",
        "  delete from pgflow.sent_key where chain_id = any(gone);\n",
        "",
        "client/test_sent_keys.py::test_the_key_is_of_one_run_and_goes_with_its_history",
    ),
    Defect(
        "workflow that nobody has passed over in silence",
        "sql/views/runs.sql",
        "when s.with_workflow = 0 then",
        "when false then",
        "worker/test_unserved.py::test_a_queued_run_says_why_nobody_takes_it",
    ),
    Defect(
        "keys that nobody frees",
        "pgflow/_worker/upkeep.py",
        "                    await self._control.ask(worker_calls.sweep_keys())\n",
        "",
        "client/test_runs.py::test_a_worker_frees_keys_whose_retention_is_over",
    ),
    Defect(
        "partition that one open run keeps large for good",
        "pgflow/_worker/upkeep.py",
        "                    for shrunk in await "
        "self._control.ask(worker_calls.shrink_journal()):\n",
        "                    for shrunk in ():\n",
        "sql/test_sparse_partitions.py::test_a_worker_shrinks_what_an_open_run_keeps_and_the_run_goes_on",
    ),
    Defect(
        "rows moved as new ones, which older snapshots do not see",
        "sql/core/sparse.sql",
        "execute format('cluster pgflow.%I using %I', part.partition, part.partition || '_pkey');",
        "perform set_config('pgflow.rewrites', 'on', true); "
        "execute format('create temp table kept_ as table pgflow.%1$I; truncate pgflow.%1$I; "
        "insert into pgflow.%1$I table kept_; drop table kept_', part.partition);",
        "sql/test_sparse_partitions.py::test_whoever_reads_with_a_snapshot_from_before_finds_the_journal",
    ),
    Defect(
        "any number of rows moved while everybody waits",
        "sql/core/sparse.sql",
        "when found_units > max_units or found_bytes > max_bytes then 'units'",
        "when false then 'units'",
        "sql/test_sparse_partitions.py::test_units_of_more_bytes_than_may_be_moved_stay",
    ),
    Defect(
        "lock that is asked for again at once",
        "sql/core/sparse.sql",
        "    continue when backing_off and part.kept_large = 'busy' and part.next_try_at > t;\n",
        "",
        "sql/test_sparse_partitions.py::test_a_lock_that_is_not_to_be_had_is_tried_again_less_and_less_often",
    ),
    Defect(
        "sweep that looks at the oldest keys only",
        "sql/ops/retention.sql",
        "h.chain_id >= anywhere order by",
        "h.chain_id >= class.oldest order by",
        "sql/test_sql_start.py::test_a_sweep_finds_what_is_over_behind_many_that_are_open_and_looks_at_few",
    ),
    Defect(
        "readers of a closed stream that wait",
        "pgflow/_client/handles.py",
        "self.is_at_end = item.value is None",
        "self.is_at_end = False",
        "flow/test_state_and_streams.py::test_readers_of_a_closed_stream_end_though_the_run_goes_on",
    ),
)

SUPERVISION = (
    Defect(
        "a number of something else than seconds",
        "pgflow/_model/durations.py",
        "seconds = float(value)",
        "seconds = float(value) / 1000",
        "model/test_durations.py::test_a_number_means_seconds_wherever_a_duration_is_declared",
    ),
    Defect(
        "hung threads are not replaced",
        "pgflow/_worker/threads.py",
        "            self._count -= 1\n",
        "",
        "worker/test_supervision.py::test_a_pool_replaces_lost_threads_up_to_its_bound",
    ),
    Defect(
        "a worker goes on without its threads",
        "pgflow/_worker/lost_threads.py",
        "elif now - self._too_many_since > self._grace_seconds:",
        "elif False:",
        "worker/test_supervision.py::test_a_worker_that_has_lost_too_many_threads_hands_its_runs_back_and_says_so",
    ),
    Defect(
        "an interrupt out of a body taken for the end",
        "pgflow/_worker/bodies.py",
        "and call.spec.definition.is_async\n            and is_interrupt(error)",
        "",
        "worker/test_supervision.py::test_whatever_a_body_raises_its_run_ends_and_the_worker_goes_on",
    ),
    Defect(
        "a listener ended by what somebody notifies",
        "pgflow/_worker/listener.py",
        "if len(n) < MAX_DIGITS and n.isascii() and n.isdigit()",
        "if n.isdigit()",
        "worker/test_supervision.py::test_nothing_that_anybody_notifies_ends_a_listener",
    ),
    Defect(
        "a listener that nobody begins again",
        "pgflow/_worker/listener.py",
        'keep_going(f"the listener on {self._channel}", self._run, self._given_up)',
        "self._run()",
        "worker/test_supervision.py::test_a_loop_that_fails_once_begins_again_and_the_work_goes_on[news-an error]",
    ),
    Defect(
        "looks for results that end and leave their callers waiting",
        "pgflow/_client/results.py",
        "        if self._waits and task is self._task and not self._closing:",
        "        if False:",
        "worker/test_supervision.py::test_looks_for_results_that_are_cancelled_leave_nobody_waiting",
    ),
    Defect(
        "looks for results that end whoever waits for the next",
        "pgflow/_client/results.py",
        "if self._waits and task is self._task and not self._closing:",
        "if self._waits and not self._closing:",
        "worker/test_supervision.py::test_who_asks_for_a_result_as_the_looks_for_another_end_gets_it",
    ),
    Defect(
        "a cancel of something else ends the looks for results",
        "pgflow/_client/results.py",
        "            except BaseException as error:\n                if is_own_end(error, task):\n",
        "            except Exception as error:\n                if False:\n",
        "worker/test_supervision.py::test_a_loop_that_fails_once_begins_again_and_the_work_goes_on[results-a cancel]",
    ),
    Defect(
        "a body that is cancelled by nobody is forgotten",
        "pgflow/_worker/bodies.py",
        "return isinstance(error, asyncio.CancelledError) and (\n            self._stopped or "
        "execution.over or not execution.wants(call)\n        )",
        "return isinstance(error, asyncio.CancelledError)",
        "worker/test_supervision.py::test_a_body_that_is_cancelled_before_it_begins_holds_its_run",
    ),
    Defect(
        "connections lost to bodies that hang are not replaced",
        "pgflow/_transactions/psycopg.py",
        "self._most + len(self._left_behind)",
        "self._most",
        "worker/test_supervision.py::test_connections_and_locks_of_transactions_that_hang_are_replaced_and_freed",
    ),
    Defect(
        "a body that was left behind keeps its locks",
        "pgflow/_worker/open_transactions.py",
        "            known.leave_behind()\n            known.cut()\n",
        "            known.leave_behind()\n",
        "worker/test_supervision.py::test_connections_and_locks_of_transactions_that_hang_are_replaced_and_freed",
    ),
    Defect(
        "a heart that stops at an object of the application",
        "pgflow/_worker/heartbeat.py",
        "            except BaseException as error:  # noqa: BLE001 - it looks",
        "            except psycopg.Error as error:  # noqa: BLE001 - it looks",
        "worker/test_supervision.py::test_a_heart_goes_on_whatever_holds_up_the_loop",
        also=(("import logging\n", "import logging\nimport psycopg\n"),),
    ),
    Defect(
        "a worker's times are read when they are needed",
        "pgflow/_worker/options.py",
        "            setattr(self, name, seconds(",
        "            (self, name, lambda: seconds(",
        "model/test_durations.py::test_options_of_a_worker_are_read_as_durations_where_they_are_given",
    ),
    Defect(
        "a loop that fails ends unseen",
        "pgflow/_worker/supervision.py",
        "            error = failed\n",
        "            log.debug('%s', failed)\n            return\n",
        "worker/test_supervision.py::test_a_loop_that_fails_once_begins_again_and_the_work_goes_on",
    ),
    Defect(
        "a worker fails and tells nobody",
        "pgflow/app/_async.py",
        "self._waiter.fail(worker.failure)",
        "pass",
        "worker/test_supervision.py::test_a_loop_that_cannot_go_on_ends_the_worker_and_the_caller_is_told",
    ),
    Defect(
        "an annotation's own error ends the claims",
        "pgflow/_model/codecs.py",
        "    except BaseException as error:\n        # A class may say how",
        "    except SyntaxError as error:\n        # A class may say how",
        "worker/test_supervision.py::test_a_bad_annotation_started_from_sql_holds_its_run_and_no_other[badly_annotated]",
    ),
)

VALUES = (
    Defect(
        "a field's name taken for a part of its schema",
        "pgflow/_model/coreschemas.py",
        'BY_NAME = frozenset({"fields", "choices"})',
        "BY_NAME: frozenset[str] = frozenset()",
        "model/test_values.py::test_a_field_may_have_any_name_and_what_is_in_it_comes_back",
    ),
    Defect(
        "a model in a model written as pydantic writes it",
        "pgflow/_model/coreschemas.py",
        'part["cls"] = _StandIn.of(cls, classes)',
        "pass",
        "model/test_values.py::test_any_bytes_inside_a_class_come_back",
    ),
    Defect(
        "an instance of a union's second class written as its first",
        "pgflow/_model/coreschemas.py",
        "        if not cls._known:\n            return",
        "        if True:\n            return",
        "model/test_values.py::test_of_the_classes_of_a_union_an_instance_has_the_nearest",
    ),
)

LOOP = (
    Defect(
        "no task factory to ask for",
        "pgflow/_engine/loop.py",
        "def get_task_factory(self) -> None:",
        "def get_no_task_factory(self) -> None:",
        "engine/test_anyio.py::test_every_method_of_an_event_loop_works_or_refuses_by_name",
    ),
    Defect(
        "tasks cancelled in the order of addresses",
        "pgflow/_engine/loop.py",
        "if len(ordinals) > 1:",
        "if len(ordinals) > 1_000_000:",
        "engine/test_anyio.py::test_scopes_in_a_cancelled_group_are_left_in_the_order_of_their_beginning",
    ),
    Defect(
        "a callback that repeats itself is forgotten",
        "pgflow/_engine/loop.py",
        "self._ready, self._repeating = self._repeating, self._ready",
        "self._repeating.clear()",
        "engine/test_anyio.py::test_a_callback_that_appends_itself_again_rests_until_the_next_outcome",
    ),
    Defect(
        "an interrupt of the code's own ends the worker",
        "pgflow/_engine/loop.py",
        "                    if is_interrupt(error):\n",
        "                    if isinstance(error, KeyboardInterrupt):\n",
        "engine/test_loop.py::test_an_interrupt_that_the_code_raises_itself_fails_the_run",
    ),
)

TEXTS = (
    Defect(
        "record of a log in which a key begins a line",
        "pgflow/logs.py",
        "visible(str(arg)) if isinstance(arg, (str, BaseException)) else arg",
        "arg",
        "flow/test_logging.py::test_a_key_with_a_newline_makes_no_second_line_whatever_the_formatter",
    ),
    Defect(
        "terminal that obeys the name of a run",
        "cli/pgflow_cli/look/output.py",
        "    from pgflow import texts\n\n    return texts.printable(text, keep=keep)",
        "    return text",
        "cli/test_cli_list.py::test_what_others_have_named_reaches_a_terminal_harmless[list-table]",
    ),
    Defect(
        "password cut at a slash and said as a port",
        "pgflow/_db/dsn.py",
        "all(\n        port.isdecimal() or not port for port in ports\n    )",
        "True",
        "db/test_dsn.py::test_a_string_that_libpq_would_cut_in_its_password_is_refused_and_not_repeated[postgresql://db:hunter2/x]",
    ),
)

BUDGETS = (
    Defect(
        "pools that are not locked",
        "sql/ledgers/budgets.sql",
        'order by p.name collate "C" for no key update;',
        'order by p.name collate "C";',
        "budgets/test_budget_drawers.py::test_two_hundred_drawers_never_overdraw_and_can_spend_nearly_all[one pool]",
    ),
    Defect(
        "a pool that looks at itself alone",
        "sql/ledgers/budgets.sql",
        "      select l.* into short from pgflow.lacking_(names, periods, amounts) l;",
        "      select l.* into short from pgflow.lacking_(names[1:1], periods, amounts) l;",
        "budgets/test_budget_sql.py::test_a_pool_that_is_revoked_admits_nothing_below_it_until_it_is_restored",
    ),
    Defect(
        "a reservation that outlives its call",
        "pgflow/_engine/agenda.py",
        "                self.over.append(call)\n",
        "                pass\n",
        "budgets/test_budgets.py::test_calls_are_admitted_until_the_pool_lacks_what_the_next_one_may_cost",
    ),
    Defect(
        "charges of failed tries that are forgotten",
        "pgflow/_engine/release.py",
        "            buffer.record_charges(call)\n",
        "            call.charges = call.charges if result.delay_seconds is None else None\n"
        "            buffer.record_charges(call)\n",
        "budgets/test_budgets.py::test_failed_tries_share_the_reservation_and_their_charges_are_kept",
    ),
    Defect(
        "a rolled back body that cost nothing",
        "pgflow/_engine/flushing.py",
        "            call.charges, call.began_us = self._fenced_spending",
        "            call.charges, call.began_us = None, self._fenced_spending[1]",
        "budgets/test_budgets.py::test_a_commit_that_fails_keeps_what_the_body_has_spent",
    ),
    Defect(
        "an overrun that is never covered",
        "sql/ledgers/budgets.sql",
        "    overrun = s.overrun - least(s.overrun, coalesce(s.allowed - s.charged - s.reserved + g.amount, 0))",
        "    overrun = s.overrun",
        "budgets/test_budget_sql.py::test_an_overrun_fills_the_pool_and_is_covered_before_anything_else_is_admitted",
    ),
    Defect(
        "a period by the clock of no zone",
        "sql/ledgers/budgets.sql",
        "date_trunc(per, t, tz)",
        "date_trunc(per, t, 'UTC')",
        "budgets/test_budget_sql.py::test_a_period_is_full_again_when_the_calendar_of_its_zone_says_so",
    ),
    Defect(
        "a reservation that a run ended by force keeps",
        "sql/runs/wake.sql",
        "    perform pgflow.return_reservations_(ended);\n",
        "    null;\n",
        "budgets/test_budget_sql.py::test_runs_ended_together_by_force_return_what_they_have_in_one_order",
    ),
    Defect(
        "a reservation that a leased run ended by force keeps",
        "sql/runs/answer.sql",
        "      perform pgflow.return_reservations_(array[one.me]);\n",
        "",
        "budgets/test_budget_sql.py::test_a_run_that_is_ended_by_force_returns_all_that_it_has_reserved",
    ),
    Defect(
        "an inherited admission",
        "pgflow/_engine/history.py",
        "            if heritage is not None and unit.seq <= heritage.cut:\n",
        "            if False:\n",
        "budgets/test_budgets.py::test_a_fork_asks_again_for_a_call_that_it_has_inherited",
    ),
    Defect(
        "a run that keeps what it has reserved when it ends in its journal",
        "pgflow/_engine/history.py",
        "            self._agenda.note_drawn()\n",
        "",
        "budgets/test_budgets.py::test_a_run_that_ends_while_it_still_repeats_its_journal_returns_what_is_left",
    ),
    Defect(
        "a reservation of an effect that the database has closed",
        "pgflow/_engine/agenda.py",
        "if isinstance(call, EffectCall) or call.number in self.left_behind",
        "if call.number in self.left_behind",
        "budgets/test_budgets.py::test_what_the_database_has_closed_returns_what_is_left_though_the_worker_was_lost",
    ),
    Defect(
        "a result made anew that cost nothing",
        "pgflow/_engine/renewal.py",
        "            if call.has_spent:\n",
        "            if False:\n",
        "budgets/test_budgets.py::test_what_a_result_costs_that_is_made_anew_is_charged",
    ),
    Defect(
        "a call that is given up and does not count",
        "pgflow/_engine/execution.py",
        "        if isinstance(call, StepCall) and call.has_spent:\n",
        "        if isinstance(call, StepCall) and call.charges is not None:\n",
        "budgets/test_budgets.py::test_a_call_that_is_given_up_counts_though_its_body_said_nothing",
    ),
    Defect(
        "a charge of more units than its row has room for",
        "pgflow/_model/budgets.py",
        "MOST_UNITS = 32\n",
        "MOST_UNITS = 3200\n",
        "budgets/test_budgets.py::test_a_body_may_charge_more_units_than_one_charge_has_room_for",
    ),
    Defect(
        "a pool that nobody has made and that admits all",
        "sql/ledgers/budgets.sql",
        "  where p.name is null or p.revoked_at is not null order by x.n limit 1;",
        "  where p.revoked_at is not null order by x.n limit 1;",
        "budgets/test_budget_sql.py::test_a_child_under_a_pool_that_nobody_has_made_is_admitted_nothing",
    ),
)

GATES = (
    Defect(
        "gate that is answered twice",
        "sql/ledgers/gates.sql",
        "    if asked.run_id is null or pgflow.is_closed_(gate) then",
        "    if asked.run_id is null then",
        "gates/test_gates_race.py::test_sixteen_answerers_of_one_gate_have_one_winner[read committed]",
    ),
    Defect(
        "answers that are judged before they have a number",
        "sql/ledgers/gates.sql",
        "    may := pgflow.approvers_of_(asked, t);",
        "    may := pgflow.approvers_of_(asked, t);\n"
        "    select coalesce(max(a.n), 0) + 1 into number from pgflow.gate_answer a where a.gate = gate;",
        "gates/test_gates_race.py::test_an_answer_that_is_committed_while_another_is_judged_comes_first",
    ),
    Defect(
        "answer to another request",
        "sql/ledgers/gates.sql",
        "if payload_hash <> shown then",
        "if false then",
        "gates/test_gates.py::test_an_edit_voids_the_approvals_of_what_was_asked_before",
    ),
    Defect(
        "answer after the time",
        "sql/ledgers/gates.sql",
        "    if asked.expires_at <= t then",
        "    if false then",
        "gates/test_gates.py::test_an_answer_after_the_time_is_refused_though_no_worker_has_looked",
    ),
    Defect(
        "expiry that overtakes an answer",
        "sql/ledgers/gates.sql",
        "    continue when not pg_try_advisory_xact_lock(pgflow.lock_of_gate_(asked.gate));",
        "",
        "gates/test_gates_race.py::test_expiry_waits_for_nobody_who_is_answering",
    ),
    Defect(
        "expiry that does not look behind its lock",
        "sql/ledgers/gates.sql",
        "    continue when pgflow.is_closed_(asked.gate);",
        "",
        "gates/test_gates_race.py::test_expiry_sees_an_answer_that_was_committed_as_it_took_the_lock[read committed]",
    ),
    Defect(
        "expiry that fails for good where one snapshot serves all",
        "sql/ledgers/gates.sql",
        "    on conflict on constraint gate_answer_pkey do nothing;\n    continue when not found;",
        "    ;",
        "gates/test_gates_race.py::test_expiry_sees_an_answer_that_was_committed_as_it_took_the_lock[repeatable read]",
    ),
    Defect(
        "vote that is doubled by delegation",
        "sql/ledgers/gates.sql",
        "if verdict = 'delegate' and said_by = any(agreed) then",
        "if false then",
        "gates/test_gates.py::test_nobody_counts_twice_by_delegating",
    ),
    Defect(
        "vote that is handed to one who has another",
        "sql/ledgers/gates.sql",
        "if verdict = 'delegate' and (may = '{}' or hand_to = any(may)) then",
        "if verdict = 'delegate' and may = '{}' then",
        "gates/test_gates.py::test_nobody_counts_twice_by_delegating",
    ),
    Defect(
        "answered gate in the inbox",
        "sql/ledgers/gates.sql",
        "a where a.gate = g.gate and a.closes and a.refusal is null);",
        "a where false);",
        "gates/test_gates.py::test_the_inbox_has_nothing_that_is_answered",
    ),
    Defect(
        "leave for other arguments",
        "sql/ledgers/effects.sql",
        "when 'approve' then pgflow.is_envelope_(leave_of_.request) or leave_of_.request = case",
        "when 'approve' then true or leave_of_.request = case",
        "gates/test_policy_gates.py::test_a_leave_is_for_these_arguments_and_for_one_act",
    ),
    Defect(
        "pool that is asked for an act that a person has done",
        "pgflow/_engine/ledger.py",
        "call.leave, call.was_taken_over = leave.gate, leave.is_done",
        "call.leave = leave.gate",
        "gates/test_policy_gates.py::test_what_waits_for_leave_reserves_nothing_and_is_admitted_when_it_acts[answer1-paid by hand-0]",
    ),
    Defect(
        "debt of an act that a person has done",
        "sql/ledgers/effects.sql",
        "      where leave->>'verdict' is distinct from 'take_over';",
        "      where true;",
        "gates/test_policy_gates.py::test_what_a_person_took_over_is_recorded_and_never_run",
    ),
    Defect(
        "link whose signature is not looked at",
        "pgflow/links.py",
        "name for name in self._keys if hmac.compare_digest(self._mac(name, body), said)",
        "name for name in self._keys",
        "gates/test_links.py::test_a_link_that_was_altered_is_refused",
    ),
    Defect(
        "key by another name",
        "pgflow/links.py",
        "        if key_id not in signers:",
        "        if False:",
        "gates/test_links_hostile.py::test_a_key_of_another_name_or_text_does_not_help",
    ),
    Defect(
        "request that is shown by a link out of time",
        "pgflow/links.py",
        "    if await _ask(app, has_passed(link.until)):",
        "    if False:",
        "gates/test_links_hostile.py::test_a_link_out_of_time_shows_nothing_and_answers_nothing",
    ),
    Defect(
        "answer by half a form",
        "pgflow/links.py",
        '        if message["type"] != "http.request":',
        "        if False:",
        "gates/test_links_hostile.py::test_a_form_that_is_huge_malformed_or_cut_off_answers_nothing",
    ),
    Defect(
        "gate by policy that anybody may answer",
        "sql/ledgers/effects.sql",
        "jsonb_build_array(jsonb_build_array(e.call, told.version, null, told.terms));",
        "jsonb_build_array(jsonb_build_array(e.call, told.version, null, null));",
        "gates/test_policy_terms.py::test_a_rule_says_who_may_answer_and_how_many_must",
    ),
    Defect(
        "choice of a model that passes for the code's",
        "sql/ledgers/policy.sql",
        "    continue when rule.author = 'model' and not is_planned and not pgflow.is_by_model_(me, decision);",
        "    continue when rule.author = 'model' and not is_planned;",
        "gates/test_policy_terms.py::test_a_rule_may_be_for_what_a_model_has_chosen",
    ),
    Defect(
        "approver whom nobody tells",
        "pgflow/_flow/ledgers/effect.py",
        "        if needs.notify is not None and notify is not None:",
        "        if False:",
        "gates/test_policy_terms.py::test_whoever_the_policy_asks_is_told_once",
    ),
    Defect(
        "link for any request of its gate",
        "pgflow/links.py",
        '"payload_hash": link.payload_hash,',
        '"payload_hash": None,',
        "gates/test_links.py::test_a_link_is_for_the_request_that_was_shown",
    ),
    Defect(
        "link without an end",
        "pgflow/links.py",
        '"valid_until": link.until,',
        '"valid_until": None,',
        "gates/test_links.py::test_a_link_ends_by_the_clock_of_the_database",
    ),
    Defect(
        "gate that is asked again",
        "pgflow/_engine/gates.py",
        "        if not self.asked_seq:",
        "        if True:",
        "gates/test_gates_engine.py::test_a_gate_is_asked_by_the_commit_with_which_the_run_parks",
    ),
    Defect(
        "person who counts twice",
        "sql/ledgers/gates.sql",
        "if said_by = any(agreed) and value is null then",
        "if false then",
        "gates/test_gates.py::test_a_quorum_counts_each_person_once_and_one_veto_is_enough",
    ),
    Defect(
        "gate that outlives its run",
        "sql/runs/commit.sql",
        "    if batch ? 'g' then",
        "    if false then",
        "gates/test_gates.py::test_a_gate_closes_with_its_run[leaves_open]",
    ),
)

COORDINATION = (
    Defect(
        "a lock is won over another's head",
        "sql/coordination/locks.sql",
        "exit when not pgflow.is_open_to_(wanted, waiter.is_shared);",
        "continue when not pgflow.is_open_to_(wanted, waiter.is_shared);",
        "locks/test_locks.py::test_those_who_share_a_lock_hold_it_together_and_do_not_overtake_one_who_would_not",
    ),
    Defect(
        "a lock is looked at in one snapshot for all",
        "sql/coordination/locks.sql",
        "return current_setting('transaction_isolation') = 'read committed'\n"
        "    and pg_try_advisory_xact_lock(hashtext('pgflow.lock'), hashtext(key));",
        "return pg_try_advisory_xact_lock(hashtext('pgflow.lock'), hashtext(key));",
        "locks/test_plain_locks.py::test_in_one_snapshot_for_all_a_lock_is_asked_for_and_won_later",
    ),
    Defect(
        "who has its place in its hands is forgotten",
        "sql/coordination/locks.sql",
        "insert into pgflow.lock_nudge (nudged_at, key) values (t, wanted);",
        "null;",
        "locks/test_plain_locks.py::test_who_renews_its_place_while_the_lock_is_given_back_is_let_in_afterwards",
    ),
    Defect(
        "an expired holder goes on",
        "sql/coordination/locks.sql",
        "continue when (held.expires_at <= t) is not true and not part.is_given_back;",
        "continue when not part.is_given_back;",
        "locks/test_locks.py::"
        "test_a_holder_that_asks_when_its_time_is_over_is_told_though_nobody_has_swept",
    ),
    Defect(
        "a circle of waits is not seen",
        "sql/coordination/locks.sql",
        "elsif pgflow.closes_circle_(place) then",
        "elsif false then",
        "locks/test_locks.py::test_who_closes_a_circle_of_waits_is_refused_and_the_others_go_on",
    ),
    Defect(
        "a fence may be lost with the server",
        "sql/coordination/locks.sql",
        "  if current_setting('synchronous_commit') = 'off' then\n"
        "    perform set_config('synchronous_commit', 'on', true);\n"
        "  end if;\n"
        "  return nextval",
        "  return nextval",
        "locks/test_plain_locks.py::test_a_fence_is_durable_before_anybody_reads_it",
    ),
    Defect(
        "one that asks no more is waited for",
        "sql/coordination/locks.sql",
        "insert into pgflow.lock_nudge (nudged_at, key) select distinct t, g.key from gone g;",
        "select 1 into waiter.ticket from gone g;",
        "locks/test_plain_locks.py::test_those_behind_one_that_asks_no_more_are_let_in",
    ),
    Defect(
        "who finds a lock expired forgets the queue",
        "sql/coordination/locks.sql",
        "is_freed := found;",
        "",
        "locks/test_plain_locks.py::test_who_finds_a_lock_expired_and_may_not_have_it_leaves_it_to_the_next_in_the_queue",
    ),
    Defect(
        "one that shares a lock has it alone",
        "sql/coordination/locks.sql",
        "if held.is_shared <> shared then",
        "if false then",
        "locks/test_plain_locks.py::test_a_holder_that_shares_a_lock_does_not_have_it_alone",
    ),
    Defect(
        "a holder leaves its place in the queue",
        "sql/coordination/locks.sql",
        "  delete from pgflow.lock_wait w where w.key = key and w.holder = holder and w.run_id is "
        "null;\n"
        "  perform pgflow.nudge_key_(key);\n"
        "  return until",
        "  perform pgflow.nudge_key_(key);\n  return until",
        "locks/test_plain_locks.py::test_who_asked_twice_since_the_answer_was_lost_does_not_wait_behind_itself",
    ),
    Defect(
        "a generation waits for what it holds itself",
        "sql/coordination/locks.sql",
        "where k.run_id = me and k.call = 0 and k.key = key for update skip locked",
        "where false for update skip locked",
        "locks/test_locks.py::test_a_generation_that_shares_what_the_one_before_had_alone_gives_it_back_first",
    ),
    Defect(
        "an update by mail is made again under its key",
        "pgflow/_worker/entities.py",
        "idempotency_key=asked.idempotency_key,",
        "idempotency_key=None,",
        "entities/test_entities.py::test_an_update_from_sql_is_made_once_under_its_key",
    ),
    Defect(
        "an update by mail that cannot be made stops all others",
        "pgflow/_worker/entities.py",
        "passed_over.append(asked.mail_id)",
        "return",
        "entities/test_entities.py::test_mail_that_cannot_be_made_now_stops_no_other_entity",
    ),
    Defect(
        "a run that ends keeps its locks",
        "pgflow/_engine/execution.py",
        "flush.has_locks = self.flushing.may_have_locks",
        "flush.has_locks = False",
        "locks/test_locks.py::test_the_end_of_a_run_gives_its_locks_back",
    ),
    Defect(
        "a block records without a look at its lock",
        "pgflow/_engine/flushing.py",
        "checks = agenda.holds and flush.rows",
        "checks = False",
        "locks/test_locks.py::test_a_step_is_not_begun_once_the_lock_is_lost",
    ),
    Defect(
        "a transaction commits without its lock",
        "sql/coordination/locks.sql",
        "if held < cardinality(fences)\n",
        "if false\n",
        "locks/test_plain_locks.py::test_a_transaction_in_the_block_commits_only_while_the_lock_is_held",
    ),
    Defect(
        "an entity is changed whatever its version",
        "sql/coordination/entities.sql",
        "if expect <> version then",
        "if false then",
        "entities/test_entities.py::test_an_expected_version_is_compared_before_the_change",
    ),
    Defect(
        "an update is made again under its key",
        "sql/coordination/entities.sql",
        "if idempotency_key is not null then\n    select h.verdict",
        "if false then\n    select h.verdict",
        "entities/test_entities.py::test_updates_from_plain_code",
    ),
)

SEALS = (
    Defect(
        "a journal that its owner may rewrite",
        "sql/core/guard.sql",
        "<> 'on' then",
        "= 'off' then",
        "seals/test_sealing.py::test_the_journal_is_append_only_for_its_owner",
    ),
    Defect(
        "new partitions without a guard",
        "sql/core/partition.sql",
        "    perform pgflow.guard_table_(name);\n",
        "",
        "seals/test_sealing.py::test_the_journal_is_append_only_for_its_owner",
    ),
    Defect(
        "runs passed whose start is not committed",
        "sql/ledgers/seals.sql",
        "    state.waits_for := pgflow.starters_(this_round = 1);\n",
        "    state.waits_for := '{}';\n",
        "seals/test_sealing.py::test_a_run_whose_start_is_not_committed_yet_is_not_passed",
    ),
    Defect(
        "whoever looks at the sequence holds the sealer up",
        "sql/ledgers/seals.sql",
        " and l.mode = 'RowExclusiveLock'\n",
        "\n",
        "seals/test_sealing.py::test_whoever_looks_at_the_sequence_holds_nobody_up",
    ),
    Defect(
        "runs that owe are done with when they have ended",
        "sql/ledgers/seals.sql",
        "n.is_sound and n.outcome is not null and not n.owes as is_closed",
        "n.is_sound and n.outcome is not null as is_closed",
        "seals/test_sealing.py::test_what_is_said_of_an_ended_run_that_owes_is_sealed_too",
    ),
    Defect(
        "a rewound run that is not sealed anew",
        "sql/again/fork.sql",
        "  perform pgflow.look_again_(array[me]);\n",
        "",
        "seals/test_sealing.py::test_a_rewind_after_the_end_is_no_change_of_history",
    ),
    Defect(
        "a changed outcome sealed as if it were new",
        "sql/ledgers/seals.sql",
        "(pgflow.outcome_text_(o)) or o.status = 'continued' and exists (",
        "(pgflow.outcome_text_(o)) or o.status = 'continued' or exists (",
        "seals/test_sealing.py::test_a_rewind_after_the_end_is_no_change_of_history",
    ),
    Defect(
        "a seal that forgets the one before it",
        "sql/ledgers/seals.sql",
        "decode('02', 'hex') || before || segment",
        "decode('02', 'hex') || segment",
        "seals/test_verify.py::test_a_proof_convinces_without_a_database",
    ),
    Defect(
        "a unit's hash without the time of its record",
        "sql/ledgers/seals.sql",
        "pgflow.exact_(at), pgflow.exact_(recorded_at), pgflow.exact_(due_at))::text;",
        "pgflow.exact_(at), pgflow.exact_(due_at))::text;",
        "seals/test_verify.py::test_every_change_of_a_single_row_of_a_thousand_is_found",
    ),
    Defect(
        "units behind the last seal believed",
        "sql/ledgers/verify.sql",
        "or not is_pending and exists (select from pgflow.unit u where u.run_id = me and u.seq > "
        "after) then",
        "then",
        "seals/test_verify.py::test_every_change_of_a_single_row_of_a_thousand_is_found",
    ),
    Defect(
        "a redaction that nobody recorded believed",
        "sql/ledgers/verify.sql",
        "      and not pgflow.is_recorded_redaction_(me, v.seq, v.what, v.body);\n",
        "      and false;\n",
        "seals/test_redact.py::test_a_redaction_that_nobody_recorded_is_found",
    ),
    Defect(
        "a day in the anchor that is not compared",
        "sql/ledgers/verify.sql",
        "    elsif (kept->>'root', kept->>'head', kept->>'first_round', kept->>'last_round') is "
        "distinct from",
        "    elsif false and (kept->>'root', kept->>'head', kept->>'first_round', "
        "kept->>'last_round') is distinct from",
        "seals/test_verify.py::test_whoever_forges_the_seals_too_is_found_by_the_anchor_alone",
    ),
    Defect(
        "a day reopened by a clock that goes back",
        "sql/ledgers/seals.sql",
        "  t := greatest(t, last_at); -- a day that is closed stays closed, whatever becomes of "
        "the clock\n",
        "",
        "seals/test_sealing.py::test_a_day_gets_its_root_once_it_is_over",
    ),
    Defect(
        "removed history without a note on its seals",
        "sql/ops/retention.sql",
        "    perform pgflow.drop_seals_(gone, t);\n",
        "",
        "seals/test_sealing.py::test_removed_history_leaves_the_roots_and_no_findings",
    ),
    Defect(
        "a redacted value handed to the code",
        "pgflow/_model/opening.py",
        "unit.kind in _WHOLE or (",
        "unit.kind in _WHOLE and not payload.startswith(REDACTED) or (False and ",
        "seals/test_redact.py::test_a_replay_is_refused_with_an_error_of_its_own[c]",
    ),
    Defect(
        "copies of a redacted value left in later generations",
        "sql/ledgers/redact.sql",
        "join pgflow.run r on r.origin_run_id = l.run_id and r.origin_seq >= seq\n",
        "join pgflow.run r on false\n",
        "seals/test_redact.py::test_copies_in_later_generations_go_with_it",
    ),
    Defect(
        "a first round that waits for nobody who saw that nothing is sealed",
        "sql/ledgers/seals.sql",
        "    state.waits_for := pgflow.starters_(this_round = 1);\n",
        "    state.waits_for := pgflow.starters_(false);\n",
        "seals/test_sealing.py::test_the_first_round_waits_for_whoever_saw_that_nothing_is_sealed",
    ),
    Defect(
        "an old snapshot believed that says that nothing is sealed",
        "sql/ledgers/seals.sql",
        "\n    or current_setting('transaction_isolation') <> 'read committed'\n",
        "\n",
        "seals/test_sealing.py::test_whoever_saw_it_long_ago_is_looked_at_again",
    ),
    Defect(
        "an ask for another look that is dropped",
        "sql/ledgers/seals.sql",
        "  where exists (select from pgflow.seal_state s where s.is_on) or exists",
        "  where not exists (select from pgflow.seal x where x.run_id = i.id) and exists",
        "seals/test_sealing.py::test_whoever_asks_while_the_sealer_looks_is_not_forgotten",
    ),
    Defect(
        "a seal made while the history of its run is removed",
        "sql/ledgers/seals.sql",
        "elsif not pg_try_advisory_xact_lock_shared(hashtextextended('pgflow.retention', 0)) then",
        "elsif false then",
        "seals/test_sealing.py::test_nothing_is_sealed_while_history_is_removed",
    ),
    Defect(
        "a round without an end",
        "sql/ledgers/seals.sql",
        " and (looked = 0 or clock_timestamp() < until) loop",
        " loop",
        "seals/test_sealing.py::test_a_round_ends_when_its_time_is_over",
    ),
    Defect(
        "whatever looks like a redacted value taken for one",
        "sql/core/envelopes.sql",
        """ and substr(body, 36, 65) ~ '^[0-9a-f]{64}"$';""",
        ";",
        "seals/test_sealing.py::test_a_value_that_pretends_to_be_redacted_holds_nobody_up",
    ),
    Defect(
        "an origin of a run that is not sealed",
        "sql/ledgers/seals.sql",
        "r.origin_run_id, r.origin_seq, encode(",
        "r.origin_run_id, encode(",
        "seals/test_verify.py::test_every_change_of_a_start_or_an_outcome_is_found",
    ),
    Defect(
        "a page of nothing that finds nothing",
        "sql/ledgers/verify.sql",
        "if after is null or coalesce(max, 0) < 1 then",
        "if false then",
        "seals/test_verify.py::test_a_page_of_nothing_is_no_verification",
    ),
    Defect(
        "units without a run that nobody looks at",
        "sql/ledgers/verify.sql",
        "where u.run_id > after and u.run_id <= passed\n",
        "where false\n",
        "seals/test_verify.py::test_every_change_of_a_run_or_of_the_seals_is_found",
    ),
    Defect(
        "a proof for another anchor than the one that is kept",
        "sql/ledgers/verify.sql",
        "    select a.* into strict reach from pgflow.reach_(anchor) a;\n  else\n",
        "  end if;\n  if true then\n",
        "seals/test_verify.py::test_a_proof_fits_the_anchor_that_it_was_made_for",
    ),
    Defect(
        "a redacted value left to be reused",
        "sql/ledgers/redact.sql",
        "  perform pgflow.redact_copies_(heirs, body, case when what = 'unit' then body->'request' end);\n",
        "",
        "seals/test_redact.py::test_what_is_carried_for_reuse_goes_with_it",
    ),
    Defect(
        "a redacted verdict left in the history of its entity",
        "sql/ledgers/redact.sql",
        "if old.kind = 'H' then",
        "if false then",
        "seals/test_redact.py::test_a_redacted_verdict_leaves_the_history_of_its_entity_too",
    ),
    Defect(
        "an update waits for a verdict that was redacted",
        "pgflow/_worker/entities.py",
        "return isinstance(error, Redacted)",
        "return False",
        "seals/test_redact.py::test_a_redacted_verdict_leaves_the_history_of_its_entity_too",
    ),
    Defect(
        "a trial balance that forgets what failed",
        "sql/ledgers/balance.sql",
        "  where b.opened <> b.confirmed + b.failed + b.unknown + b.accepted + b.open\n",
        "  where false\n",
        "seals/test_sealing.py::test_the_trial_balance_misses_what_was_taken_out",
    ),
)

UPDATES = (
    Defect(
        "an update taken that is not in the mailbox",
        "sql/runs/updates.sql",
        "if gone <> taken then",
        "if false then",
        "updates/test_updates.py::test_an_update_that_is_not_in_the_mailbox_cannot_be_taken",
    ),
    Defect(
        "an update id for another update",
        "sql/runs/updates.sql",
        "if found_as <> wanted then",
        "if false then",
        "updates/test_updates.py::test_one_id_is_one_update_with_one_answer",
    ),
    Defect(
        "an update id that is many updates",
        "sql/runs/updates.sql",
        "  if is_new then\n",
        "  if true then\n",
        "updates/test_updates.py::test_one_id_is_one_update_with_one_answer",
    ),
    Defect(
        "a second answer in place of the first",
        "sql/runs/updates.sql",
        "and u.update_id = e->>2 and u.status is null;",
        "and u.update_id = e->>2;",
        "updates/test_updates.py::test_a_rewind_has_an_update_made_again_and_keeps_its_answer",
    ),
    Defect(
        "an update that was refused and is taken",
        "sql/runs/updates.sql",
        "u.status in ('refused', 'rejected')",
        "u.status in ('rejected')",
        "updates/test_updates.py::test_who_was_told_that_the_run_had_ended_is_not_heard_after_a_rewind",
    ),
    Defect(
        "an update that nobody will ever answer",
        "sql/runs/updates.sql",
        "if told.status is null then",
        "if false then",
        "updates/test_updates.py::test_an_update_that_nobody_took_is_refused_once_the_run_has_ended",
    ),
    Defect(
        "an update refused by a run that is being rewound",
        "sql/runs/updates.sql",
        "    for key share skip locked;\n",
        "    ;\n",
        "updates/test_updates.py::test_who_asks_while_a_run_is_being_rewound_is_not_told_that_it_has_ended",
    ),
    Defect(
        "an update that wakes nobody",
        "sql/runs/wake.sql",
        "s.call = w.call or w.kind = 'u'\n        )\n        offset 0",
        "s.call = w.call\n        )\n        offset 0",
        "updates/test_updates.py::test_an_update_is_sent_in_the_transaction_of_its_sender",
    ),
    Defect(
        "updates of a dropped part that are lost",
        "sql/again/fork.sql",
        "u.seq > cut and u.kind = 'h') then",
        "false) then",
        "updates/test_updates.py::test_a_rewind_has_an_update_made_again_and_keeps_its_answer",
    ),
    Defect(
        "a validator that nobody asks",
        "pgflow/_flow/updates.py",
        "            if not is_again:\n",
        "            if False:\n",
        "updates/test_updates.py::test_a_rejected_update_is_answered_and_leaves_nothing_in_the_journal",
    ),
    Defect(
        "a validator that judges an update twice",
        "pgflow/_flow/updates.py",
        "            if not is_again:\n",
        "            if True:\n",
        "updates/test_updates.py::test_a_rewind_has_an_update_made_again_and_keeps_its_answer",
    ),
    Defect(
        "an update that a later generation leaves without answer",
        "pgflow/_engine/updates.py",
        "            flush.words = [*flush.words, *refused]\n",
        "            del refused\n",
        "updates/test_updates.py::test_a_run_that_continues_as_new_refuses_the_update_that_it_was_at",
    ),
    Defect(
        "an update whose receipt goes with a fence",
        "pgflow/_engine/buffer.py",
        "return bool(self._taken or self._returned or self._words)",
        "return bool(self._taken or self._returned)",
        "updates/test_updates_engine.py::"
        "test_a_transaction_of_a_handler_commits_behind_the_receipt_of_its_update",
    ),
    Defect(
        "an answer that leaves by the direct path",
        "pgflow/_worker/committer.py",
        "flush.taken or flush.returned or flush.words",
        "flush.taken or flush.returned",
        "updates/test_updates.py::test_an_update_is_taken_by_its_handler_and_answered",
    ),
)

DEFECTS = (
    *COORDINATION, *FENCES, *CLAIMS, *LOCKS, *WAKES, *CLOCKS, *REPLAY, *STEPS, *EFFECTS, *SECURITY, *SERVERS,
    *UPGRADES, *SHOWN, *PROOF, *NAMES, *VALUES, *LOOP, *SUPERVISION, *TEXTS, *SEALS,
    *BUDGETS,
    *GATES,
    *UPDATES,
)  # fmt: skip
