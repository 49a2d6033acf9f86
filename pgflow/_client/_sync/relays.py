# Made by tools/colours.py from pgflow/_client/_async/relays.py; edit that one.
"""Relays of the outbox: pausing and replaying one, and trying its dead events again."""

from __future__ import annotations

from pgflow._client._sync.rewind import Rewinds
from pgflow._db.calls import outbox


class Relays(Rewinds):
    """The part of a client that looks after relays."""

    def pause_relay(self, name: str, *, why: str | None = None, by: str | None = None) -> None:
        """Has a relay take no more events until it is resumed; those under way are delivered.

        Args:
            name: Its name.
            why: The reason, kept with the order.
            by: Name of whoever says so.

        Raises:
            RunNotFound: There is no such relay.
        """
        self._ask(outbox.pause_relay(name, why, by))

    def resume_relay(self, name: str, *, why: str | None = None, by: str | None = None) -> None:
        """Lets a relay go on that is paused, or whose target had failed too often.

        Args:
            name: Its name.
            why: The reason, kept with the order.
            by: Name of whoever says so.

        Raises:
            RunNotFound: There is no such relay.
        """
        self._ask(outbox.resume_relay(name, why, by))

    def replay_relay(
        self, name: str, from_event: int, *, why: str | None = None, by: str | None = None
    ) -> int:
        """Has a relay go on from an event, backwards or forwards: what it has delivered since comes
        again, under the same numbers.

        Args:
            name: Its name.
            from_event: Number of the first event.
            why: The reason, kept with the order.
            by: Name of whoever says so.

        Returns:
            Number of events that come.

        Raises:
            RunNotFound: There is no such relay.
            InvalidArgument: No event has such a number.
        """
        return self._ask(outbox.replay_relay(name, from_event, why, by))

    def redeliver_events(
        self,
        name: str,
        event: int | None = None,
        *,
        why: str | None = None,
        by: str | None = None,
    ) -> int:
        """Has a relay try its dead events again, or one of them.

        Args:
            name: Its name.
            event: Number of the event; all dead ones if not given.
            why: The reason, kept with the order.
            by: Name of whoever says so.

        Returns:
            Number of events that are tried again.

        Raises:
            RunNotFound: There is no such relay.
        """
        return self._ask(outbox.redeliver_events(name, event, why, by))
