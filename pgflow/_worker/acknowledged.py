"""Units that this worker was told are durable, for as long as a standby may lack them: they show
what a fail-over has lost.

The rows that could say so are lost together with what they say. So the worker remembers for each
run the last unit that was acknowledged, cut into stretches by the beats of the heart: each beat
answers how far the server's log is durable, which is behind everything acknowledged before the beat
was sent. A server of another timeline - or the same one, fallen back - says how far it had come
when it took over, unless it was restarted since. So of another timeline all that is remembered is
asked for, run by run, and of the same one what came after that place.

A position alone proves no loss: the log holds more than what was acknowledged, and with a
synchronous standby what it lacks never was. So where commits wait for a standby only runs that lack
something are a loss; elsewhere a piece of the log is, too, since clients and the application were
told of commits that no worker remembers.
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

REMEMBERED_SECONDS = 300.0
REMEMBERED_RUNS = 100_000
ASKED_AT_ONCE = 5_000


Told: TypeAlias = "tuple[int, int, bool, str]"
"""Token, seq, whether the run has ended, and its key: the last that was acknowledged of a run. The
seq is 0 if only its end was.

It is a plain tuple, which the garbage collector lets alone once it has seen that it holds nothing
but numbers and texts. It would go through 100,000 objects of a class again and again.
"""


class _Stretch(NamedTuple):
    flushed: int
    told_at: float
    told: dict[int, Told]


class Acknowledged:
    """See the module. Runs are noted on the worker's loop;
    all the rest is the heart's, on its thread.
    """

    def __init__(self) -> None:
        self._open: dict[int, Told] = {}
        self._sent: list[dict[int, Told]] = []
        self._stretches: deque[_Stretch] = deque()
        self._last: Beat | None = None
        self._last_at = 0.0

    def note(self, run_id: int, token: int, seq: int, key: str, *, has_ended: bool) -> None:
        """This run's units up to that seq are acknowledged; with 0, no unit is new."""
        told = self._open
        if seq == 0 and run_id in told:
            seq = told[run_id][1]
        told[run_id] = (token, seq, has_ended, key)

    def cut(self) -> None:
        """A beat is about to be sent: what was noted up to now was acknowledged before."""
        told, self._open = self._open, {}
        if told:
            self._sent.append(told)

    def judge(self, answer: Beat, ask: Callable[[Query[Any]], Any]) -> Loss | None:
        """Return the loss, if the server that answered has another log than the one before, or a
        shorter one; else None.

        Args:
            answer: Of the beat.
            ask: Asks the database; what it raises is raised.
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
        # Where another log begins is known of a server that has run ever since. One that was
        # restarted has forgotten it.
        known = kept if last.timeline == answer.timeline else -1
        doubtful = {run_id: told for part in self._doubtful(known) for run_id, told in part.items()}
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

    def beaten(self, answer: Beat) -> None:
        """The answer to a beat is seen to:
        what was noted before it lies before the position that it tells.
        """
        if answer.timeline is None or answer.flushed is None:
            self._sent.clear()
            return
        now = time.monotonic()
        told = {run_id: one for part in self._sent for run_id, one in part.items()}
        self._sent = []
        if self._last is not None and (
            self._last.timeline != answer.timeline or _fell_back(self._last, answer)
        ):
            self._stretches.clear()
        if told:
            self._stretches.append(_Stretch(answer.flushed, now, told))
        self._forget(now)
        self._last, self._last_at = answer, now

    def _doubtful(self, kept: int) -> Iterator[dict[int, Told]]:
        for stretch in self._stretches:
            if stretch.flushed > kept:
                yield stretch.told
        yield from self._sent

    @staticmethod
    def _ask_for(doubtful: dict[int, Told], ask: Callable[[Query[Any]], Any]) -> set[int]:
        run_ids = list(doubtful)
        lost: set[int] = set()
        for start in range(0, len(run_ids), ASKED_AT_ONCE):
            part = run_ids[start : start + ASKED_AT_ONCE]
            tokens, seqs, ended, _ = zip(*(doubtful[run_id] for run_id in part), strict=True)
            lost.update(ask(calls.lost_runs(part, list(tokens), list(seqs), list(ended))))
        return lost

    def _forget(self, now: float) -> None:
        count = sum(len(stretch.told) for stretch in self._stretches)
        while self._stretches and (
            now - self._stretches[0].told_at > REMEMBERED_SECONDS or count > REMEMBERED_RUNS
        ):
            count -= len(self._stretches.popleft().told)


def _fell_back(last: Beat, answer: Beat) -> bool:
    """The same log is shorter than it was: the server was put back to an earlier state,
    or its disk has lied.
    """
    return (
        last.flushed is not None
        and answer.flushed is not None
        and last.timeline == answer.timeline
        and answer.flushed < last.flushed
    )
