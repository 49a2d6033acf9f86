"""The programs of simulated runs, which are small, and the journals that one may have.

A program is a list of operations; that at position i has the calls 2i+1 and 2i+2:

    ["r"] a read ["s"] a keyed step ["t"] a transactional step ["p"] a step that a pool must admit
    ["w", name]  wait for a signal      ["v", name, seconds]  the same with a time-out
    ["b", name, name]  wait for either  ["z", seconds]  sleep
    ["k", program, key, policy] start a child ["J"] wait for all children ["g"] give up all children
    ["u"] take an update and answer it   ["n", program]  continue as new     ["f"]  fail

A journal is fed unit by unit and refuses what could not have happened: a call that ends twice, a
unit of a call that is not asked for, a signal of another name. Workers use it to know what comes
next, the model to judge what was committed.
"""

from __future__ import annotations

import random
from typing import Any, NamedTuple

Op = list[Any]
SIGNALS = ("x", "y")


class Impossible(Exception):
    """A unit that no run of this program can have at this place."""


class Unit(NamedTuple):
    seq: int
    call: int
    kind: str
    name: str | None
    payload: Any = None
    delay_seconds: float | None = None
    starts: str | None = None


CLEANUP = 9999
"""The call in which a cancelled program cleans up."""


class Journal:
    """A program and how far it has come."""

    def __init__(self, ops: list[Op]) -> None:
        self.ops = ops
        self.at = 0
        self.seq = 0
        self.cancelled = False
        self.cleaned = False
        self.continued = False
        self.loser: int | None = None
        self.tries = 0
        self.was_refused = False
        """True once a pool has refused a step."""
        self.admitted = False
        """True once a pool has let the step at hand through."""
        self.timer: int | None = None
        """Seq of the unit that started the timer of the present operation."""
        self.retry: int | None = None
        self.update: str | None = None
        """Id of the update that was taken and has no answer yet."""
        self.children: dict[int, int | None] = {}
        """Children that are started and not yet heard of: call -> run."""

    @property
    def op(self) -> Op | None:
        return self.ops[self.at] if self.at < len(self.ops) else None

    @property
    def call(self) -> int:
        return 2 * self.at + 1

    def feed(self, u: Unit) -> None:
        """Takes the next unit."""
        if u.seq != self.seq + 1:
            raise Impossible(f"seq {u.seq} follows {self.seq}")
        if self.continued:
            raise Impossible("a unit after the run was continued")
        self.settle()
        self.seq = u.seq
        if u.kind == "o" or (u.kind == "M" and u.call == 0 and not self.cancelled):
            return
        if u.kind == "x" and u.call == 0:
            if self.cancelled:
                raise Impossible("cancelled twice")
            self.cancelled = True
            return
        if self.cancelled:
            if (u.kind, u.call) != ("c", CLEANUP) or self.cleaned:
                raise Impossible("the cancelled program goes on")
            self.cleaned = True
            return
        if not self._take(u):
            raise Impossible(f"{self.op} at call {self.call} has no place for {u}")

    def _next(self) -> bool:
        self.at += 1
        self.timer = self.retry = None
        self.tries = 0
        self.admitted = False
        return True

    def _take(self, u: Unit) -> bool:
        op = self.op
        if op is None:
            return False
        what, mine = op[0], u.call == self.call
        if what == "r":
            return mine and u.kind == "c" and self._next()
        if what == "s":
            return mine and self._take_step(u)
        if what == "p":
            return mine and self._take_priced(u)
        if what == "t":
            return mine and u.kind == "c" and u.name == "t" and self._next()
        if what in "wvz":
            return mine and self._take_wait(u, op)
        if what == "u":
            return self._take_update(u)
        if what == "b":
            return self._take_either(u, op)
        if what == "k":
            return mine and self._take_child(u)
        if what in "Jg":
            return self._take_end_of_child(u, what)
        return what == "n" and u.kind == "n" and self._continue()

    def _continue(self) -> bool:
        self.continued = True
        return True

    def _take_step(self, u: Unit) -> bool:
        if u.kind == "s":
            return True
        if u.kind == "a":
            self.tries += 1
            self.retry = u.seq
            return True
        return u.kind == "c" and self._next()

    def _take_priced(self, u: Unit) -> bool:
        if u.kind in "mq":
            if self.admitted:
                return False
            self.admitted = u.kind == "m"
            self.was_refused |= u.kind == "q"
            return self.admitted or self._next()
        return self.admitted and self._take_step(u)

    def _take_wait(self, u: Unit, op: Op) -> bool:
        if u.kind == "t" and op[0] in "vz" and self.timer is None:
            self.timer = u.seq
            return True
        if u.kind == "S":
            return op[0] in "wv" and u.name == op[1] and self._next()
        if u.kind == "W":
            return op[0] == "v" and self.timer is not None and self._next()
        return u.kind == "T" and op[0] == "z" and self.timer is not None and self._next()

    def _take_update(self, u: Unit) -> bool:
        if self.update is None:
            self.update = u.payload["id"] if u.kind == "h" else None
            return u.call == self.call and self.update is not None
        if (u.kind, u.call, u.payload["id"]) != ("b", self.call + 1, self.update):
            return False
        self.update = None
        return self._next()

    def _take_either(self, u: Unit, op: Op) -> bool:
        if (
            u.kind == "S"
            and self.loser is None
            and u.call in (self.call, self.call + 1)
            and u.name == op[1 + u.call - self.call]
        ):
            self.loser = 2 * self.call + 1 - u.call
            return True
        if u.kind == "x" and u.call == self.loser:
            self.loser = None
            return self._next()
        return False

    def _take_child(self, u: Unit) -> bool:
        if u.kind == "k":
            self.children[u.call] = u.payload["run_id"]
            return self._next()
        return u.kind == "K" and u.payload["status"] == "refused" and self._next()

    def _take_end_of_child(self, u: Unit, what: str) -> bool:
        if u.kind != {"J": "K", "g": "x"}[what] or u.call not in self.children:
            return False
        del self.children[u.call]
        return bool(self.children) or self._next()

    def settle(self) -> None:
        """Steps over what has nothing to do: children to wait for where there are none."""
        while (
            self.op is not None and self.op[0] in "Jg" and not self.children and not self.cancelled
        ):
            self._next()

    def ending(self) -> str | None:
        """The status with which the program ends now."""
        if self.cancelled:
            return "cancelled" if self.cleaned else None
        op = self.op
        return "completed" if op is None else "failed" if op[0] == "f" else None


def grow(rng: random.Random, depth: int = 0, generation: int = 1) -> list[Op]:
    """A random program."""
    ops: list[Op] = []
    open_children = 0
    for _ in range(rng.randint(1, 4)):
        what = rng.choices("rstpwvbzuk", (2, 2, 4, 2, 3, 2, 1, 2, 2, 3 if depth < 2 else 0))[0]
        if what == "w":
            ops.append(["w", rng.choice(SIGNALS)])
        elif what == "v":
            ops.append(["v", rng.choice(SIGNALS), rng.randint(1, 30)])
        elif what == "b":
            ops.append(["b", *SIGNALS])
        elif what == "z":
            ops.append(["z", rng.randint(1, 30)])
        elif what == "k":
            key = f"child-{rng.randint(1, 12)}" if rng.random() < 0.3 else None
            ops.append(["k", grow(rng, depth + 1), key, rng.choice("ca")])
            open_children += 1
            if rng.random() < 0.6:
                ops.append([rng.choice("JJJg")])
        else:
            ops.append([what])
    last = rng.random()
    if last < 0.12 and generation < 3:
        ops.append(["n", grow(rng, depth, generation + 1)])
    elif last < 0.2:
        ops.append(["f"])
    return ops
