"""How waiting is drawn and told, from logs that are written by hand: it looks like waiting, and not like work."""

from __future__ import annotations

import io
from typing import Any

import msgspec
import pytest
from rich.console import Console

from perdure.cli.lines import is_news, sentence
from perdure.cli.live import Picture
from perdure.cli.options import Place
from perdure.cli.plainly import Lines
from perdure.cli.questions import read_answer, schema_words
from perdure.cli.timeline import timeline_of
from perdure.cli.watch import Watch
from perdure.graph.constants import schema_of
from perdure.ids import BranchId, Epoch, EventId, NodeId, Seq
from perdure.journal import events as e
from perdure.journal.states import Question, WaitKind, WaitState
from tests.cli.test_pictures import SECOND, Log, row

A = NodeId("a")
PLACE = Place(url="sqlite:///perdure.db", is_given=False)


def asks(prompt: str = "Sure?", *, suspends: bool = False, name: str = "ask") -> e.InteractionRequested:
    return e.InteractionRequested(
        node_id=A, attempt=1, name=name, interaction_id="r1/a/1", prompt=prompt, suspends=suspends
    )


def answered(answer: bytes | None = b"true", by: str = "ada") -> e.InteractionResponded:
    return e.InteractionResponded(
        node_id=A, interaction_id="r1/a/1", answer=msgspec.UNSET if answer is None else msgspec.Raw(answer), by=by
    )


def hibernated() -> Log:
    """A body works for a second, is unwound after two more, and goes on a day later for a second."""
    log = Log("a")
    log.start(0, "a")
    log.add(1, asks())
    log.add(3, e.NodeSuspended(node_id=A, attempt=1, reason="it waits"))
    log.add(3, e.RunSuspended(awaiting_input=True, reason="asks 'Sure?'"))
    return log


def resumed() -> Log:
    log = hibernated()
    log.claim(86_403, lost=False)
    log.add(86_403, e.RunResumed(reason="a goes on"), answered())
    log.add(86_403, e.NodeResumed(node_id=A, attempt=1))
    log.complete(86_404, "a")
    return log


def spans(log: Log, *, now: float | None = None) -> list[tuple[str, float, float]]:
    found = timeline_of(log.entries, now=None if now is None else int(now * SECOND)).spans[A]
    return [(span.outcome, span.start / SECOND, span.end / SECOND) for span in found]


def test_waiting_begins_with_the_question_not_when_the_body_is_unwound():
    log = hibernated()

    assert spans(log) == [("completed", 0, 1), ("waiting", 1, 3)]
    assert row(log.drawn(), "a").endswith("1.0 s · waits")
    assert "─" in row(log.drawn(), "a")
    assert "▒" not in row(log.drawn(), "a")
    assert "░" not in row(log.drawn(), "a")


def test_what_an_attempt_has_done_before_and_after_it_waited_is_one_attempt():
    log = resumed()
    lines = log.drawn()

    assert spans(log) == [("completed", 0, 1), ("waiting", 1, 86_403), ("completed", 86_403, 86_404)]
    assert row(lines, "a").endswith("2.0 s · waited 1 d")
    assert any("it waited, with nobody driving it" in line for line in lines)
    assert any("─ waiting" in line for line in lines)


def test_a_body_that_waits_in_memory_is_drawn_as_waiting():
    log = Log("a")
    log.start(0, "a")
    log.add(1, asks())

    assert spans(log, now=3) == [("completed", 0, 1), ("waiting", 1, 3)]
    assert row(log.drawn(now=3), "a").startswith("◫")

    log.add(3, answered())

    assert spans(log, now=4) == [("running", 0, 1), ("waiting", 1, 3), ("running", 3, 4)]
    assert row(log.drawn(now=4), "a").startswith("●")


def test_a_body_that_waits_for_two_things_waits_until_both_have_come():
    log = Log("a")
    log.start(0, "a")
    log.add(1, asks(), e.SignalAwaited(node_id=A, attempt=1, name="signal go", wait_id="r1/a/2", signal="go"))
    log.add(2, answered())
    log.add(4, e.SignalTaken(node_id=A, wait_id="r1/a/2", signal_id="s", value=msgspec.Raw(b"1")))
    log.complete(5, "a")

    assert spans(log) == [("completed", 0, 1), ("waiting", 1, 4), ("completed", 4, 5)]


def test_a_call_for_one_item_that_waits_does_not_make_its_node_wait():
    log = Log("a")
    log.start(0, "a")
    log.add(1, asks(name="3/ask"))

    assert spans(log, now=2) == [("running", 0, 2)]


def test_a_run_that_was_paused_says_so():
    log = Log("a", "b")
    log.start(0, "a")
    log.complete(1, "a")
    log.add(1, e.RunPausing(reason="lunch"), e.RunPaused())
    log.claim(3_601, lost=False)
    log.add(3_601, e.RunResumed())

    assert any("it was paused" in line for line in log.drawn())


def watch_of(log: Log, *, stays: bool) -> Watch:
    watch = log.watch()
    watch.stays = stays
    return watch


def picture_of(log: Log, *, place: Place | None = None, stays: bool = False) -> list[str]:
    console = Console(file=io.StringIO(), force_terminal=True, width=100, height=30, highlight=False)
    picture = Picture(console, place=place)
    try:
        return [line.plain for line in picture.lines(watch_of(log, stays=stays))]
    finally:
        picture.close()


def test_the_live_picture_shows_a_body_that_waits_as_waiting():
    log = Log("a")
    log.start(0, "a")
    working = picture_of(log)
    log.add(1, asks())
    waiting = picture_of(log)

    assert "asks" not in "".join(working)
    assert row(waiting, "a").lstrip().startswith("◫")
    assert row(waiting, "a").endswith("asks 'Sure?'")
    assert "◫ 1 suspended" in waiting[-1]


def test_whoever_stays_is_shown_what_to_do_as_long_as_the_run_waits(capsys: pytest.CaptureFixture[str]):
    log = hibernated()

    shown = picture_of(log, place=PLACE, stays=True)
    Lines(place=PLACE).heard(watch_of(log, stays=True), log.entries)
    later = resumed()

    assert shown[-1].strip() == "answer 'Sure?': perdure answer r1 JSON"
    assert capsys.readouterr().out.splitlines()[-1] == "answer 'Sure?': perdure answer r1 JSON"
    assert not any("perdure answer" in line for line in picture_of(hibernated(), place=PLACE))
    assert not any("perdure answer" in line for line in picture_of(later, place=PLACE, stays=True))


@pytest.mark.parametrize(
    ("event", "told", "is_told"),
    [
        (asks(), "a asks 'Sure?' (r1/a/1)", True),
        (asks("look", suspends=True), "a waits to be told to go on: look", True),
        (answered(), "a was answered by ada: true", True),
        (answered(by=""), "a was answered: true", True),
        (answered(None, "deadline"), "a was not answered in time", True),
        (answered(b"5", "deadline"), "a was not answered in time; its default counts: 5", True),
        (e.TimerFired(node_id=A, timer_id="t"), "a has slept", False),
        (
            e.SignalAwaited(node_id=A, attempt=1, name="signal go", wait_id="w", signal="go"),
            "a waits for signal 'go'",
            True,
        ),
        (e.SignalTaken(node_id=A, wait_id="w", signal_id="s7"), "a took signal s7", False),
        (e.SignalTaken(node_id=A, wait_id="w"), "a has waited for a signal in vain: its time is over", True),
        (e.NodeSuspended(node_id=A, attempt=1, reason="it waits"), "a suspended: it waits", False),
        (e.NodeResumed(node_id=A, attempt=1), "a goes on", False),
        (e.RunSuspended(reason="sleeps"), "run suspended: sleeps", True),
        (e.RunSuspended(reason="asks 'x'", awaiting_input=True), "run awaits input: asks 'x'", True),
        (e.RunPausing(reason="lunch"), "run pausing: lunch", False),
        (e.RunPaused(), "run paused", True),
        (e.RunResumed(reason="back"), "run resumed: back", True),
    ],
)
def test_events_of_waiting_are_told_in_words(event: e.AnyEvent, told: str, is_told: bool):
    entry = e.Recorded(seq=Seq(1), id=EventId("1"), branch_id=BranchId(1), epoch=Epoch(1), at=0, event=event)

    assert sentence(entry) == told
    assert is_news(event) is is_told


def test_a_time_is_told_with_its_day_unless_that_is_the_same():
    def told(due: int) -> str:
        event = e.TimerSet(node_id=A, attempt=1, name="sleep", timer_id="t", due=due)
        at = 12 * 3_600 * SECOND
        entry = e.Recorded(seq=Seq(1), id=EventId("1"), branch_id=BranchId(1), epoch=Epoch(1), at=at, event=event)
        return sentence(entry)

    assert told((12 * 3_600 + 60) * SECOND).startswith("a sleeps 1 min, until ")
    assert "-" not in told((12 * 3_600 + 60) * SECOND)
    assert "1970-01-0" in told((12 + 72) * 3_600 * SECOND)


class Person(msgspec.Struct):
    name: str
    age: int | None = None


@pytest.mark.parametrize(
    ("annotation", "told"),
    [
        (str, "a text"),
        (bool, "true or false"),
        (int, "a whole number"),
        (list[int], "a list in which each is a whole number"),
        (int | None, "a whole number or null"),
        (Person, "an object with name (a text), age (a whole number or null, may be left out)"),
        (Any, "anything"),
    ],
)
def test_a_schema_is_told_as_a_person_would(annotation: Any, told: str):
    assert schema_words(schema_of(annotation)) == told


@pytest.mark.parametrize(
    ("schema", "text", "value", "is_right"),
    [
        ({"type": "string"}, "5", "5", True),
        ({"type": "string"}, '"5"', "5", True),
        ({"type": "string"}, "null", "null", True),
        ({"type": "integer"}, "5", 5, True),
        ({"type": "integer"}, "five", "five", False),
        ({"type": "integer"}, "5.5", 5.5, False),
        ({}, "5", 5, True),
        ({}, "five", "five", True),
        ({"type": "array"}, "[1]", [1], True),
        ({"type": "string", "format": "date"}, "2026-01-31", "2026-01-31", True),
        ({"type": "string", "format": "date"}, "tomorrow", "tomorrow", False),
    ],
)
def test_an_answer_is_json_where_that_fits_and_else_a_text(schema: Any, text: str, value: Any, is_right: bool):
    wait = WaitState(
        wait_id="w", node_id=A, branch_id=BranchId(1), kind=WaitKind.ASK, name="ask", question=Question(prompt="?", schema=schema)
    )  # fmt: skip

    read, problems = read_answer(text, wait)

    assert read == value
    assert type(read) is type(value)
    assert (not problems) is is_right
