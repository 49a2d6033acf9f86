"""The campaigns, and running them."""

from __future__ import annotations

import contextlib
import random
import traceback
from collections.abc import Callable
from dataclasses import dataclass

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
from tests.campaigns.ground import Ground
from tests.campaigns.nursery import Nursery
from tests.campaigns.scratch import Scratch, starting
from tests.kits import servers
from tests.kits.evidence import Evidence, Findings


@dataclass(frozen=True)
class Campaign:
    """A campaign, and what it is about."""

    guarantees: tuple[str, ...]
    run: Callable[[Ground], list[Evidence]]


CAMPAIGNS = (
    Campaign(("G4",), starts.race_for_keys),
    Campaign(("G4",), starts.conflicts),
    Campaign(("G5",), starts.inside_transactions),
    Campaign(("G6",), endings.late_writers),
    Campaign(("G7",), fleets.zombies),
    Campaign(("G8",), values.round_trips),
    Campaign(("G8", "G9"), values.replays),
    Campaign(("G10",), faults.infrastructure_errors),
    Campaign(("G13", "G14"), fleets.recoveries),
    Campaign(("G14",), fleets.recoveries_at_limit_one),
    Campaign(("G15",), mail.lost_notifications),
    Campaign(("G16",), fleets.poison),
    Campaign(("G18",), fleets.stampede),
    Campaign(("G20",), stops.random_sigterms),
    Campaign(("G20",), stops.second_sigterms),
    Campaign(("G21",), clocks.wrong_clocks),
    Campaign(("G22", "G39"), clocks.timers_under_crashes),
    Campaign(("G31",), mail.signals_under_kills),
    Campaign(("G36",), endings.cancel_everywhere),
    Campaign(("G36",), endings.cancel_against_complete),
    Campaign(("G39",), faults.terminated_connections),
    Campaign(("G39",), faults.no_connections_left),
    Campaign(("G40",), borders.sessions),
    Campaign(("G43",), borders.limits),
    Campaign(("G44",), stops.forks),
    Campaign(("G44",), stops.interrupts),
    Campaign(("G48",), borders.hostile_names),
)


def prove(
    server_dsn: str,
    amount: int,
    seed: int,
    only: frozenset[str] = frozenset(),
    tell: Callable[[str], object] | None = None,
) -> Findings:
    """Runs every campaign, or those of the guarantees named; ``tell`` is told of each that is over."""
    chosen = [c for c in CAMPAIGNS if not only or only & set(c.guarantees)]
    findings = Findings("campaigns", seed)
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
                amount,
            )
            findings.evidence += attempt(campaign, stand)
            findings.fired.update(stand.fired)
            if tell is not None:
                tell(campaign.run.__name__)
    return findings


def attempt(campaign: Campaign, stand: Ground) -> list[Evidence]:
    """One campaign; one that fails altogether is evidence too."""
    try:
        return campaign.run(stand)
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        line = f"{type(error).__name__} in {place.name}: {str(error).partition(chr(10))[0]}"
        return [
            Evidence(g, campaign.run.__name__.replace("_", " "), 1, wrong=(line,))
            for g in campaign.guarantees
        ]


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
