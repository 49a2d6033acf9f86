"""Acknowledged units that a standby may still lack. They show what a fail-over has lost.

A fail-over loses the rows together with every trace of them in the database. So the worker
remembers the last acknowledged unit of each run, in stretches that the heartbeats delimit: the
answer to a beat says how far the server's log is durable, which includes everything acknowledged
before the beat was sent. A server on another timeline, or one that fell back on the same timeline,
reports how far it had come when it took over, unless it has restarted since. On another timeline
the worker checks every remembered run; on the same timeline only what follows that position.

A position alone proves no loss: the log holds more than the acknowledged units, and behind a
synchronous standby the missing part was never acknowledged. So where commits wait for a standby,
only a run that lacks units is a loss. Elsewhere a missing piece of the log is one too, because
clients and the application may have seen commits that no worker remembers.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

from pgflow._db.calls import loss as calls
from pgflow._db.calls.loss import Loss
from pgflow._db.calls.worker import Beat
from pgflow._db.query import Query

# Both bound the memory: older or further units are not checked after a fail-over.
REMEMBERED_SECONDS = 300.0
REMEMBERED_RUNS = 100_000
# Bounds the arrays of one statement.
ASKED_AT_ONCE = 5_000


Acknowledgement: TypeAlias = "tuple[int, int, bool, str]"
"""Token, seq, whether the run has ended, and its key: the last acknowledgement of a run. The seq is
0 if only the end was acknowledged.

A plain tuple of numbers and texts, because the garbage collector stops tracking those. It would
traverse 100,000 instances of a class again and again.
"""


class _Stretch(NamedTuple):
    flushed: int
    filed_at: float
    acknowledged: dict[int, Acknowledgement]


class Acknowledged:
    """Remembers acknowledged units and detects which of them a fail-over lost.

    The worker's loop notes runs. The heartbeat's thread does everything else.
    """

    def __init__(self) -> None:
        self._open: dict[int, Acknowledgement] = {}
        self._sent: list[dict[int, Acknowledgement]] = []
        self._stretches: deque[_Stretch] = deque()
        self._last: Beat | None = None
        self._last_at = 0.0

    def note(self, run_id: int, token: int, seq: int, key: str, *, has_ended: bool) -> None:
        """Note that the run's units up to `seq` are acknowledged; 0 if no unit is new."""
        acknowledged = self._open
        if seq == 0 and run_id in acknowledged:
            seq = acknowledged[run_id][1]
        acknowledged[run_id] = (token, seq, has_ended, key)

    def cut(self) -> None:
        """Close the current stretch before a beat is sent: everything in it was acknowledged
        earlier.
        """
        acknowledged, self._open = self._open, {}
        if acknowledged:
            self._sent.append(acknowledged)

    def judge(self, answer: Beat, ask: Callable[[Query[Any]], Any]) -> Loss | None:
        """Return the loss if the server that answered has a different or shorter log than the one
        before, else None.

        Args:
            answer: The answer to the beat.
            ask: Runs a query on the database. Its errors propagate.
        """
        last = self._last
        if (
            last is None
            or answer.timeline is None
            or not (last.timeline != answer.timeline or _fell_back(last, answer))
        ):
            return None
        assert last.timeline is not None
        assert last.flushed is not None
        assert answer.flushed is not None
        kept = (
            answer.flushed
            if answer.recovered_to is None
            else min(answer.recovered_to, answer.flushed)
        )
        # Where another log begins is known only to a server that has run ever since: a restarted
        # one has forgotten it.
        known = kept if last.timeline == answer.timeline else -1
        doubtful = {
            run_id: acknowledged
            for part in self._doubtful(known)
            for run_id, acknowledged in part.items()
        }
        lost = self._ask_for(doubtful, ask)
        if not lost and (last.waits or kept >= last.flushed):
            return None
        runs = [
            {"key": key, "seq": seq, "ended": has_ended}
            for run_id, (_, seq, has_ended, key) in doubtful.items()
            if run_id in lost
        ]
        return Loss(
            last.timeline,
            answer.timeline,
            last.flushed,
            kept,
            time.monotonic() - self._last_at,
            runs,
        )

    def beat_acknowledged(self, answer: Beat) -> None:
        """File the closed stretches under the position in the answer, which covers all
        of them.
        """
        if answer.timeline is None or answer.flushed is None:
            self._sent.clear()
            return
        now = time.monotonic()
        acknowledged = {run_id: one for part in self._sent for run_id, one in part.items()}
        self._sent = []
        if self._last is not None and (
            self._last.timeline != answer.timeline or _fell_back(self._last, answer)
        ):
            self._stretches.clear()
        if acknowledged:
            self._stretches.append(_Stretch(answer.flushed, now, acknowledged))
        self._forget(now)
        self._last, self._last_at = answer, now

    def _doubtful(self, kept: int) -> Iterator[dict[int, Acknowledgement]]:
        for stretch in self._stretches:
            if stretch.flushed > kept:
                yield stretch.acknowledged
        yield from self._sent

    @staticmethod
    def _ask_for(
        doubtful: dict[int, Acknowledgement], ask: Callable[[Query[Any]], Any]
    ) -> set[int]:
        run_ids = list(doubtful)
        lost: set[int] = set()
        for start in range(0, len(run_ids), ASKED_AT_ONCE):
            part = run_ids[start : start + ASKED_AT_ONCE]
            tokens, seqs, ended, _ = zip(*(doubtful[run_id] for run_id in part), strict=True)
            lost.update(ask(calls.lost_runs(part, list(tokens), list(seqs), list(ended))))
        return lost

    def _forget(self, now: float) -> None:
        count = sum(len(stretch.acknowledged) for stretch in self._stretches)
        while self._stretches and (
            now - self._stretches[0].filed_at > REMEMBERED_SECONDS or count > REMEMBERED_RUNS
        ):
            count -= len(self._stretches.popleft().acknowledged)


def _fell_back(last: Beat, answer: Beat) -> bool:
    """Return True if the same timeline is now shorter: the server was restored to an earlier state,
    or its disk lost acknowledged writes.
    """
    return (
        last.flushed is not None
        and answer.flushed is not None
        and last.timeline == answer.timeline
        and answer.flushed < last.flushed
    )
