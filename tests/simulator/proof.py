"""Evidence of the simulator, for the proof."""

from __future__ import annotations

from tests.kits.evidence import Evidence, Findings
from tests.simulator.campaign import Order, Totals, play_many

PROCESSES = 2

TESTED = {
    "G1": "actors die between and inside transactions; acknowledgements are lost",
    "G2": "transactions are rolled back or cut off",
    "G3": "batches and transactional steps whose acknowledgement was lost",
    "G4": "starts under keys that are taken, some by a transaction still open",
    "G5": "starts and signals in transactions held open, at two isolation levels, some rolled back",
    "G6": "runs that end while others cancel, reap, pause and resend",
    "G7": "workers frozen beyond their lease that go on",
    "G13": "all of the above, then healing",
    "G14": "workers that die or freeze holding runs",
    "G22": "clock jumps, polls halted between looking and locking",
    "G23": "looks at schedules held open, halted, cut off and late; clock jumps",
    "G24": "claims of a limited queue, some held open",
    "G28": "claims held open, reaped and released at once; locks taken and given back in "
    "transactions held open, cut off and rolled back",
    "G31": "senders, wakes and parks halted between any two looks",
    "G36": "cancels, forced and not, of runs wherever they are",
    "G37": "runs continued as new while messages are under way",
}


OF_OTHERS = frozenset({"G13"})
"""Promises that are judged by runs which another line counts: each run that is drained has its end
under G6.
"""


def prove(server_dsn: str, amount: int, seed: int) -> Findings:
    """Plays episodes of so many transactions."""
    totals = play_many(Order(server_dsn, seed, amount // PROCESSES), PROCESSES)
    figure = f"{totals.transactions} transactions of {totals.runs} runs"
    findings = Findings("simulator", seed, fired=totals.required(amount))
    for guarantee, fault in TESTED.items():
        judged = _runs(totals, guarantee)
        own = 0 if guarantee in OF_OTHERS else judged
        findings.evidence.append(
            Evidence(guarantee, fault, own, wrong=_wrong(totals, guarantee), shared=judged - own)
        )
    jumps = totals.fired["clock jumps forward"] + totals.fired["clock jumps back"]
    findings.evidence.append(
        Evidence(
            "G21",
            "the database's clock jumps by up to two hours, both ways",
            jumps,
            wrong=_wrong(totals, "G21"),
        )
    )
    findings.evidence.append(
        Evidence(
            "G15",
            "notifications lost or doubled",
            totals.fired["notification lost"],
            wrong=_wrong(totals, "G15"),
        )
    )
    findings.evidence.append(
        Evidence(
            "G29",
            "calls that wait for another transaction's end",
            totals.fired["waits for a lock"],
            wrong=_wrong(totals, "G29"),
        )
    )
    known = {e.guarantee for e in findings.evidence}
    others = tuple(
        _line(story) for story in totals.broken if story.broken and story.broken[0] not in known
    )
    findings.evidence.append(
        Evidence(
            "check",
            "pgflow.check() between all of the above",
            totals.checks,
            wrong=others,
            figure=figure,
        )
    )
    return findings


def _runs(totals: Totals, guarantee: str) -> int:
    return totals.tested["drained" if guarantee == "G13" else guarantee]


def _wrong(totals: Totals, guarantee: str) -> tuple[str, ...]:
    return tuple(
        _line(story) for story in totals.broken if story.broken and story.broken[0] == guarantee
    )


def _line(story) -> str:
    leave_out = f" --without {','.join(story.without)}" if story.without else ""
    return f"{story.broken[1]} (again: --seed {story.seed} --transactions {story.before_healing or story.transactions} --check-every 1{leave_out})"
