"""What waits in memory, because many answers come at once: for as long as nobody else needs its place."""

from __future__ import annotations

from typing import Protocol


class Guest(Protocol):
    """A run with bodies that wait."""

    def make_room(self) -> None:
        """End the bodies that only wait: at once, or by itself as soon as that is possible."""
        ...


class Warmth:
    """Keeps runs whose bodies wait in memory."""

    def __init__(self) -> None:
        self._guests: dict[Guest, None] = {}

    def add(self, guest: Guest) -> None:
        self._guests[guest] = None

    def discard(self, guest: Guest) -> None:
        self._guests.pop(guest, None)

    def make_room(self) -> None:
        """Somebody waits for a place: have none held by bodies that wait for something from outside."""
        guests, self._guests = self._guests, {}
        for guest in guests:
            guest.make_room()
