# Made by tools/colours.py from pgflow/_client/_async/relays.py; edit that one.
"""Client methods for relays of the outbox: pause, resume, replay, redeliver and drop."""

from __future__ import annotations

from pgflow._client._sync.maintenance import Maintenance
from pgflow._db.calls import outbox


class Relays(Maintenance):
    """Relay methods of a client."""

    def pause_relay(self, name: str, *, why: str | None = None, by: str | None = None) -> None:
        """Pause a relay: it takes no events until you resume it. Events in progress are delivered.

        Args:
            name: Its name.
            why: The reason, kept with the change.
            by: Name of the person or service that asks.

        Raises:
            RunNotFound: The relay does not exist.
        """
        self._ask(outbox.pause_relay(name, why, by))

    def resume_relay(self, name: str, *, why: str | None = None, by: str | None = None) -> None:
        """Resume a relay that is paused, or that stopped because its target failed too often.

        Args:
            name: Its name.
            why: The reason, kept with the change.
            by: Name of the person or service that asks.

        Raises:
            RunNotFound: The relay does not exist.
        """
        self._ask(outbox.resume_relay(name, why, by))

    def replay_relay(
        self, name: str, from_event: int, *, why: str | None = None, by: str | None = None
    ) -> int:
        """Replay a relay from an event, backwards or forwards. Events that it delivered since then
        are delivered again, under the same numbers.

        Args:
            name: Its name.
            from_event: Number of the first event.
            why: The reason, kept with the change.
            by: Name of the person or service that asks.

        Returns:
            Number of events to deliver.

        Raises:
            RunNotFound: The relay does not exist.
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
        """Retry the dead events of a relay, or one of them.

        Args:
            name: Its name.
            event: Number of the event; all dead events by default.
            why: The reason, kept with the change.
            by: Name of the person or service that asks.

        Returns:
            Number of events retried.

        Raises:
            RunNotFound: The relay does not exist.
        """
        return self._ask(outbox.redeliver_events(name, event, why, by))

    def drop_relay(self, name: str) -> None:
        """Remove a relay that no code declares any more. Its place and its dead events are lost,
        and it keeps no events from being removed.

        Args:
            name: Its name.

        Raises:
            RunNotFound: The relay does not exist.
        """
        self._ask(outbox.drop_relay(name))
