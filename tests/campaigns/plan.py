"""The campaigns, the shares of time among them, and running them."""

from __future__ import annotations

import contextlib
import random
import time
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.campaigns import (
    borders,
    clocks,
    endings,
    faults,
    fleets,
    ground,
    mail,
    starts,
    stops,
    values,
)
from tests.campaigns.nursery import Nursery
from tests.campaigns.scratch import Scratch, starting
from tests.kits import servers
from tests.kits.evidence import Evidence, Findings

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.campaigns.ground import Ground


@dataclass(frozen=True)
class Campaign:
    """A campaign, what it is about, and its share of the time."""

    guarantees: tuple[str, ...]
    run: Callable[[Ground], list[Evidence]]
    weight: float


CAMPAIGNS = (
    Campaign(("G4",), starts.race_for_keys, 4),
    Campaign(("G4",), starts.conflicts, 1),
    Campaign(("G5",), starts.inside_transactions, 3),
    Campaign(("G6",), endings.late_writers, 3),
    Campaign(("G7",), fleets.zombies, 7),
    Campaign(("G8",), values.round_trips, 4),
    Campaign(("G8", "G9"), values.replays, 2),
    Campaign(("G10",), faults.infrastructure_errors, 3),
    Campaign(("G13", "G14"), fleets.recoveries, 7),
    Campaign(("G14",), fleets.recoveries_at_limit_one, 5),
    Campaign(("G15",), mail.lost_notifications, 3),
    Campaign(("G16",), fleets.poison, 4),
    Campaign(("G18",), fleets.stampede, 5),
    Campaign(("G20",), stops.random_sigterms, 6),
    Campaign(("G20",), stops.second_sigterms, 2),
    Campaign(("G21",), clocks.wrong_clocks, 4),
    Campaign(("G22", "G39"), clocks.timers_under_crashes, 8),
    Campaign(("G31",), mail.signals_under_kills, 4),
    Campaign(("G36",), endings.cancel_everywhere, 3),
    Campaign(("G36",), endings.cancel_against_complete, 3),
    Campaign(("G39",), faults.terminated_connections, 4),
    Campaign(("G39",), faults.no_connections_left, 3),
    Campaign(("G40",), borders.sessions, 2),
    Campaign(("G43",), borders.limits, 1),
    Campaign(("G44",), stops.forks, 2),
    Campaign(("G44",), stops.interrupts, 2),
    Campaign(("G48",), borders.hostile_names, 3),
)


def prove(
    server_dsn: str,
    seconds: float,
    seed: int,
    only: frozenset[str] = frozenset(),
    tell: Callable[[str], object] | None = None,
) -> Findings:
    """Runs every campaign, or those of the guarantees named; ``tell`` is told how long each
    took.
    """
    chosen = [c for c in CAMPAIGNS if not only or only & set(c.guarantees)]
    second_of_weight = seconds / sum(c.weight for c in chosen)
    findings = Findings("campaigns", seed)
    began = time.monotonic()
    template = ground.prepare_template(server_dsn)
    with contextlib.ExitStack() as stack:
        stack.callback(servers.drop_database, server_dsn, template)
        nursery = stack.enter_context(Nursery())
        scratch = Lazily(stack, server_dsn)
        for campaign in chosen:
            stand = ground.Ground(
                server_dsn,
                template,
                nursery,
                scratch,
                random.Random(f"{seed}/{campaign.run.__name__}"),
                campaign.weight * second_of_weight,
            )
            findings.evidence += attempt(campaign, stand)
            findings.fired.update(stand.fired)
            if tell is not None:
                tell(
                    f"{campaign.run.__name__}: {stand.took_seconds:.1f} s of {stand.seconds:.1f} s"
                )
    findings.seconds = time.monotonic() - began
    return findings


def attempt(campaign: Campaign, stand: Ground) -> list[Evidence]:
    """One campaign; one that fails altogether is evidence too."""
    began = time.monotonic()
    try:
        return campaign.run(stand)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{type(error).__name__} in {place.name}: {str(error).partition(chr(10))[0]}"
        return [
            Evidence(g, campaign.run.__name__.replace("_", " "), 1, wrong=(line,))
            for g in campaign.guarantees
        ]
    finally:
        stand.took_seconds = time.monotonic() - began


class Lazily:
    """A server for faults that others must not see, started for whoever asks first."""

    def __init__(self, stack: contextlib.ExitStack, server_dsn: str) -> None:
        self._stack = stack
        self._server_dsn = server_dsn
        self._scratch: Scratch | None = None

    def __call__(self) -> Scratch:
        """The server; its answers come from here on."""
        if self._scratch is None:
            self._scratch = self._stack.enter_context(starting(self._server_dsn))
        return self._scratch
