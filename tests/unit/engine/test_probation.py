"""Suspects are tried few at a time, and what would be quarantined next is tried alone."""

from __future__ import annotations

from perdure.engine.owning.probation import Probation
from perdure.ids import RunId
from perdure.testing.loop import VirtualClock

LIMIT = 5


class Suspect:
    def __init__(self) -> None:
        self.is_harmless = False


class Frozen(VirtualClock):
    def __init__(self) -> None:
        self.seconds = 0.0

    def monotonic(self) -> float:
        return self.seconds


def taken(probation: Probation, losses: int, name: str = "run") -> Suspect | None:
    if not probation.admits(RunId(name), losses, LIMIT):
        return None
    suspect = Suspect()
    probation.begin(suspect, losses, LIMIT)
    return suspect


def test_one_more_for_each_that_proves_harmless():
    probation = Probation(Frozen(), trial_seconds=10)
    first = taken(probation, 2)
    assert first is not None
    assert taken(probation, 2) is None

    first.is_harmless = True

    assert [taken(probation, 2) is not None for _ in range(3)] == [True, True, False]


def test_who_has_lived_for_a_while_is_harmless():
    clock = Frozen()
    probation = Probation(clock, trial_seconds=10)
    assert taken(probation, 2) is not None

    clock.seconds = 11

    assert taken(probation, 2) is not None


def test_one_loss_may_happen_to_any_run():
    probation = Probation(Frozen(), trial_seconds=10)
    assert all(taken(probation, 1) is not None for _ in range(20))


def test_a_last_chance_is_taken_alone():
    probation = Probation(Frozen(), trial_seconds=10)
    for _ in range(3):
        harmless = taken(probation, 2)
        assert harmless is not None
        harmless.is_harmless = True
    beside = taken(probation, 2)
    assert beside is not None
    assert taken(probation, LIMIT, "last") is None
    assert probation.has_refused

    beside.is_harmless = True
    last = taken(probation, LIMIT, "last")
    assert last is not None
    assert taken(probation, 2) is None
    assert taken(probation, LIMIT) is None

    last.is_harmless = True
    assert taken(probation, LIMIT) is not None


def test_what_is_over_its_limit_is_quarantined_without_a_trial_of_its_own():
    probation = Probation(Frozen(), trial_seconds=10)
    assert taken(probation, LIMIT + 1) is not None
