"""The promises of pgflow, by number, and those that are not built."""

from __future__ import annotations

PROMISES = {
    "G1": "A transactional step that committed never runs again; its rows are there once.",
    "G2": "A transactional step that did not commit leaves nothing: no row of the application, "
    "none of ours.",
    "G3": "After a lost answer to COMMIT the truth is read back before anything else of the run "
    "goes on.",
    "G4": "Starting is idempotent: one key is one run; another workflow or input under it is "
    "refused and harms nothing.",
    "G5": "What is started or sent inside the application's transaction is there if and only if "
    "that commits.",
    "G6": "An outcome is written once and never changes.",
    "G7": "A worker whose lease was taken can commit nothing for that run.",
    "G8": "The value that a step returns on its first run is the value that a replay sees.",
    "G9": "A recorded None, false or empty value counts as recorded.",
    "G10": "Trouble with the infrastructure is retried and never recorded as a step's outcome.",
    "G11": "An outside effect that cannot be repeated is recorded as intended before the act, and "
    "never repeated blindly.",
    "G12": "An idempotent outside step acts under the same key on every attempt.",
    "G13": "Every run that can go on does so once faults stop.",
    "G14": "The work of a dead worker goes on elsewhere within the dead timeout and a second.",
    "G15": "A lost notification costs at most one poll.",
    "G16": "A run that kills its workers is stopped, with the reason, and the queue goes on.",
    "G17": "No work starves: what was started first at the same priority is claimed first.",
    "G18": "Workers that come back all at once do not storm the database.",
    "G19": "A part of a worker that dies is noticed and begun again, or the worker ends and says "
    "so.",
    "G20": "SIGTERM finishes or hands back everything; nothing stays leased.",
    "G21": "Only the database's clock decides what is due, expired or timed out.",
    "G22": "A durable timer fires once, never early, whatever the server went through meanwhile.",
    "G23": "Each slot of a schedule is used at most once, and at least once within the policy for "
    "catching up.",
    "G24": "A claim never takes more than asked for, and a queue's limit is never exceeded.",
    "G25": "A rate limit is never exceeded in any window.",
    "G26": "At most one live holder of a dedup key in its window.",
    "G27": "First in, first out per key, where that is asked for.",
    "G28": "A lock has one holder and a fence that only grows.",
    "G29": "No two calls of the API deadlock; a deadlock of the application's is retried.",
    "G30": "A budget is never overdrawn, and its sums balance after any crash.",
    "G31": "Each accepted signal is received by exactly one wait, in the order of sending.",
    "G32": "Each committed outbox row is delivered at least once, in order per key.",
    "G33": "Recorded histories replay; changed code is noticed and writes nothing.",
    "G34": "Concurrent code in a workflow replays in the order in which it ran.",
    "G35": "After a failure every confirmed effect is compensated, or the run is stuck and says "
    "what it owes.",
    "G36": "A cancel ends a run from any state; against a completion one of the two wins.",
    "G37": "A run that goes on as new loses no signal and nothing that is owed.",
    "G38": "After a failover to a synchronous replica nothing acknowledged is lost; workers follow.",
    "G39": "Cut connections, immediate stops of the server and a lack of connections are survived.",
    "G40": "Joining the application's session changes nothing in it and is never weakened by it.",
    "G41": "An old snapshot held open slows claims by a stated factor at most.",
    "G42": "Installing and upgrading is safe beside working workers, twice at once, and when "
    "killed midway.",
    "G43": "What is too large is refused when it is written, with a typed error.",
    "G44": "Threads, tasks and forks share nothing that they must not.",
    "G45": "Every effect has an intent, an attempt and an outcome; accounts balance.",
    "G46": "Nobody but the owner can change history; a change in place is detected.",
    "G47": "No call reaches another tenant's rows.",
    "G48": "Hostile roles, names and values run nothing and stop nothing.",
    "G49": "Secrets appear in no dump, log or output.",
    "G50": "Every hot statement keeps its plan with a million finished runs, with stale "
    "statistics, with generic plans.",
}

NOT_BUILT: dict[str, str] = {}
"""Promise -> what it waits for. A line with evidence does not belong here."""
