"""Promises whose best proof is a test of the suite: those tests, run on the server at hand."""

from __future__ import annotations

from collections.abc import Collection

from evidence import Evidence, Findings

from proof.layers import run_tests

TESTS = {
    "G1": ("random workflows in SQL whose sessions are killed, and jobs that commit effect and record apart",
        ["tests/flows/test_flow_programs.py", "-k", "kills or apart"]),
    "G8": ("fields called as parts of schemas are, unions, classes of every make; generated annotations",
        ["tests/model/test_values.py", "tests/model/test_lossless.py", "-k",
            "any_name or tags_of or any_make or nearest or test_lossless"]),
    "G4": ("keys that are taken, by every policy; defaults; starts sent again",
        ["tests/client/test_taken_keys.py"]),
    "G9": ("recorded values that are empty",
        ["tests/flow/test_steps.py", "-k", "none_false_and_empty"]),
    "G3": ("hooks behind COMMIT that raise",
        ["tests/transactions/test_sqlalchemy.py", "tests/transactions/test_django.py", "-k",
            "none_of_the_commit"]),
    "G10": ((
        "functions missing or forbidden, time-outs, pools without room, databases of bodies' own, "
            "closed connections, odd settings; calls in bodies, by SQLSTATE"),
        ["tests/transactions/test_trouble_in_bodies.py", "tests/db/test_infrastructure.py",
            "tests/db/test_settings.py", "tests/transactions/test_sqlalchemy.py", "-k",
            "test_trouble_in_bodies or test_infrastructure or test_settings or refuses or in_time"]),
    "G13": ("partitions of the journal shrunk under an open run: commits, kills, old snapshots, locks",
        ["tests/sql/test_sparse_partitions.py"]),
    "G15": ("lanes that are new to a worker; names that nobody serves",
        ["tests/worker/test_versions.py", "tests/worker/test_unserved.py", "-k",
            "lane or pinned or takes_it or refuse"]),
    "G16": ("one that kills among 1 to 1,000 runs, by deaths and rounds; several; limits and lines",
        ["tests/sql/test_sql_suspects.py"]),
    "G17": ("priorities and runs that come back among fresh ones",
        ["tests/sql/test_sql_claim.py", "-k", "first_in_first_out"]),
    "G19": ("loops, threads, listeners and a heart that die, or hear nothing",
        ["tests/worker/test_heart.py", "tests/worker/test_supervision.py",
            "tests/db/test_deadlines.py::test_a_heart_that_hears_nothing_asks_on_another_connection",
            "tests/db/test_deadlines.py::test_a_listener_whose_server_is_frozen_listens_anew"]),
    "G23": ((
        "looks that die, come late, at once and twice; clocks that go back and change; keepers "
            "that are killed; deploys and their rollbacks"), ["tests/schedules"]),
    "G24": ("limits of queues, and plans that claim more than they should",
        ["tests/worker/test_queues.py", "tests/sql/test_sql_claim.py", "-k", "limit or more_than"]),
    "G25": ("rates by window and by bucket, of queues and of keys, with clocks that are put back",
        ["tests/queues/test_lines_sql.py", "-k", "rate or bucket or window"]),
    "G26": ("keys that count while their run is open and in windows, started by many at once",
        ["tests/client/test_key_times.py"]),
    "G27": ("keys in order while runs sleep, fail, are cancelled and paused by many at once",
        ["tests/queues/test_lines_sql.py", "tests/queues/test_lines_at_once.py", "-k",
            "in_order or whoever_meets"]),
    "G28": ("locks of runs whose workers are killed and frozen, before a register that refuses old fences",
        ["tests/locks/test_register.py"]),
    "G31": ((
        "messages sent again under their key, of the wrong type, refused or mended, and for runs "
            "that have ended"),
        ["tests/client/test_sent_keys.py", "tests/client/test_messages.py",
            "tests/client/test_delivery.py", "tests/client/test_signal_types.py"]),
    "G33": ("code that changed under its histories",
        ["tests/engine/test_engine_divergence.py", "-k", "not no_change_makes"]),
    "G34": ("tasks, groups, time-outs and cancels in every order, of asyncio and anyio",
        ["tests/engine/test_loop.py", "tests/engine/test_engine_order.py",
            "tests/engine/test_anyio.py"]),
    "G35": ("runs ended by force, with what they had done, begun and handed on",
        ["tests/ledgers/test_forced.py"]),
    "G30": ((
        "200 drawers on one pool and on nested ones while their sessions are killed; draws that "
            "meet; workers lost between two commits"),
        ["tests/budgets/test_budget_drawers.py", "tests/budgets/test_budget_locks.py",
            "tests/budgets/test_budgets.py"]),
    "G37": ("signals and timers across generations", ["tests/flow/test_continue_as_new.py"]),
    "G38": ((
        "waits for servers that are frozen or replaced, in every library; new primaries that are "
            "behind, restarted or have given out a number again"),
        ["tests/worker/test_losses.py", "tests/proof/test_failover.py",
            "tests/db/test_deadlines.py",
            "tests/client/test_runs.py::test_whoever_waits_for_a_run_that_a_failover_has_lost_gets_no_other_runs_result"]),
    "G41": ("a snapshot held while thousands of runs are claimed, in pages read",
        ["tests/sql/test_held_snapshot.py", "tests/worker/test_front.py"]),
    "G42": ("installers at once, killed midway; older and newer workers",
        ["tests/sql/test_schema.py", "-k", "installer or upgrade or newer or older"]),
    "G32": ("slow transactions, writers of one key, relays that are lost, targets that fail",
        ["tests/outbox"]),
    "G44": ("code in threads, forks under a pool, one app on many event loops",
        ["tests/flow/test_sync_workflows.py", "tests/client/test_event_loops.py"]),
    "G46": (("each row of a thousand edited, removed, put in, reordered, cut off; seals forged, "
        "values redacted; each column of what people said edited"),
        ["tests/seals/test_verify.py", "tests/seals/test_redact.py", "tests/seals/test_sealing.py",
            "tests/seals/test_evidence.py"]),
    "G47": (("every function and view that a login of a tenant may use, with keys and numbers of "
        "another's runs; every command, page and tool; the same with one door open"),
        ["tests/sql/test_tenants.py", "tests/cli/test_tenant_probe.py"]),
    "G48": ((
        "planted objects, roles without rights, advisory locks that are guessed, gates and locks "
            "in the names of others; statements of people in a database whose application has left "
            "everything open; values that bash evaluates; hostile .git"),
        ["tests/sql/test_schema.py", "tests/sql/test_latches.py", "tests/gates/test_approvers.py",
            "tests/locks/test_plain_locks.py", "tests/inspect/test_inspect_sheet.py",
            "tests/runs/test_bash_values.py", "tests/workspace/test_hostile_repositories.py", "-k",
            ("planted or privileges or nobody or plain or latches or approvers "
                "or names_that_a_view or test_inspect_sheet or evaluates or its_place or hostile")]),
    "G49": ((
        "a random secret in inputs, results, signals, errors and connection strings, sought in "
            "tables, views, a dump, logs, answers of commands, pages and spans; secrets of models, "
            "scripts and logs; keys rotated under load and kills, and lost"),
        ["tests/flow/test_canary.py", "tests/model/test_keyring.py", "tests/model/test_masking.py",
            "tests/model/test_lossless.py", "tests/runs/test_secrets.py", "-k",
            "test_canary or test_keyring or test_masking or test_secrets or another_value_is_refused"]),
}  # fmt: skip


def prove(
    server_dsn: str, amount: int, seed: int, promises: Collection[str] = TESTS.keys()
) -> Findings:
    """One line for each of them; ``runs`` counts the tests that passed, each under one promise."""
    del amount
    findings = Findings("tests", seed)
    counted: set[str] = set()
    for guarantee, (fault, paths) in TESTS.items():
        if guarantee not in promises:
            continue
        passed, failed = run_tests(paths, server_dsn)
        own = set(passed) - counted
        counted |= own
        findings.evidence.append(
            Evidence(
                guarantee, fault, len(own), wrong=tuple(failed), shared=len(set(passed)) - len(own)
            )
        )
    return findings
