"""How runs are drawn and told, from logs that are written by hand: pure, in milliseconds."""

from __future__ import annotations

import io
import re

import msgspec
import pytest
from rich.console import Console

from perdure.cli import words
from perdure.cli.gantt import MOST_ROWS, draw
from perdure.cli.lines import is_news, sentence
from perdure.cli.live import Picture
from perdure.cli.marks import NODE_MARKS, RUN_MARKS
from perdure.cli.terminal import Paper, Pen
from perdure.cli.timeline import timeline_of
from perdure.cli.watch import Watch
from perdure.engine.recording.hub import Flash
from perdure.graph.model import Node
from perdure.ids import BranchId, EngineId, Epoch, EventId, NodeId, RunId, Seq
from perdure.journal import events as e
from perdure.journal.states import NodeStatus, RunStatus

SECOND = 1_000_000
RUN = RunId("r1")
PAPER = Paper(width=80, pen=Pen(), is_live=False)
BOOM = e.ErrorRecord(error_class=e.ErrorClass.BUG, type="builtins.ValueError", message="boom")


class Log:
    """A log that grows by hand. Times are seconds since its beginning."""

    def __init__(self, *node_ids: str, stage: str | None = None) -> None:
        self.nodes = [Node(id=NodeId(node_id), type="t.work", stage=stage) for node_id in node_ids]
        self.entries: list[e.Recorded] = []
        self._epoch = Epoch(0)
        self.add(0, e.RunCreated(workflow="w", version=1, graph_hash="h"))
        self.claim(0, lost=False)
        self.add(0, e.RunStarted())

    def add(self, seconds: float, *events: e.AnyEvent) -> None:
        for event in events:
            seq = Seq(len(self.entries) + 1)
            at = int(seconds * SECOND)
            self.entries.append(
                e.Recorded(seq=seq, id=EventId(str(seq)), branch_id=BranchId(1), epoch=self._epoch, at=at, event=event)
            )

    def claim(self, seconds: float, *, lost: bool) -> None:
        self._epoch = Epoch(self._epoch + 1)
        self.add(seconds, e.RunClaimed(engine_id=EngineId("e"), epoch=self._epoch, lost=lost))

    def start(self, seconds: float, node_id: str, attempt: int = 1) -> None:
        self.add(
            seconds,
            e.NodeScheduled(node_id=NodeId(node_id), attempt=attempt),
            e.NodeStarted(node_id=NodeId(node_id), attempt=attempt),
        )

    def complete(self, seconds: float, node_id: str, attempt: int = 1) -> None:
        self.add(seconds, e.NodeCompleted(node_id=NodeId(node_id), attempt=attempt, duration_ms=500))

    def fail(self, seconds: float, node_id: str, attempt: int = 1, *, final: bool = False) -> None:
        self.add(seconds, e.NodeFailed(node_id=NodeId(node_id), attempt=attempt, error=BOOM, final=final))

    def watch(self) -> Watch:
        watch = Watch(RUN, self.nodes, known=0)
        watch.hear(self.entries)
        return watch

    def drawn(self, *, now: float | None = None, width: int = 80) -> list[str]:
        moment = None if now is None else int(now * SECOND)
        timeline = timeline_of(self.entries, now=moment)
        paper = Paper(width=width, pen=Pen(), is_live=False)
        return list(draw(self.nodes, self.watch().projection.nodes, timeline, paper))


def row(lines: list[str], name: str) -> str:
    return next(line for line in lines if f" {name} " in line)


def test_bars_follow_each_other_as_the_nodes_did():
    log = Log("a", "b", "c")
    log.start(0, "a")
    log.complete(1, "a")
    log.start(1, "b")
    log.complete(3, "b")

    lines = log.drawn()

    a, b = row(lines, "a"), row(lines, "b")
    assert a.count("█") * 2 == pytest.approx(b.count("█"), abs=2)
    assert a.rindex("█") <= b.index("█") <= a.rindex("█") + 1
    assert a.endswith("1.0 s")
    assert row(lines, "c").endswith("idle")


def test_a_run_goes_on_elsewhere_only_if_it_moves():
    log = Log("a")
    watch = Watch(RUN, log.nodes, known=0)
    watch.is_elsewhere = True
    unread = watch.goes_on_elsewhere
    log.start(0, "a")
    moving = log.watch()
    log.complete(1, "a")
    log.add(1, e.RunCompleted())
    ended = log.watch()

    moving.is_elsewhere = ended.is_elsewhere = True

    assert (unread, moving.goes_on_elsewhere, ended.goes_on_elsewhere) == (False, True, False)


def test_that_a_run_was_deleted_later_takes_no_time_of_it():
    log = Log("a")
    log.start(0, "a")
    log.complete(1, "a")
    log.add(1, e.RunCompleted())
    before = log.drawn()
    log.add(1_000_000, e.RunDeleted())

    assert log.drawn() == before


@pytest.mark.parametrize(
    ("end", "ending"),
    [(e.RunCompleted(), "completed"), (e.RunFailed(error=BOOM), "failed"), (e.RunCancelled(), "cancelled")],
)
def test_how_a_run_had_ended_is_told_when_it_goes_on(end: e.AnyEvent, ending: str):
    log = Log("a")
    log.add(1, e.RunPaused())
    log.claim(2, lost=False)  # somebody who has it end
    log.add(2, end)
    log.claim(5, lost=False)
    log.add(5, e.RunReopened())
    log.claim(9, lost=True)

    periods = timeline_of(log.entries, now=None).periods

    assert [period.ending for period in periods] == ["paused", ending, "died", "stopped"]


def test_every_attempt_is_visible():
    log = Log("a")
    log.start(0, "a")
    log.fail(1, "a")
    log.start(2, "a", attempt=2)
    log.complete(3, "a", attempt=2)

    lines = log.drawn()

    assert re.search(r"╳+ +█+", row(lines, "a"))
    assert row(lines, "a").endswith("1.0 s · 1 failed")
    assert lines[-1] == "█ completed   ╳ failed"


def test_a_failed_attempt_of_no_length_does_not_vanish():
    log = Log("a")
    log.start(0, "a")
    log.fail(0, "a")
    log.start(0, "a", attempt=2)
    log.complete(1_000, "a", attempt=2)

    assert row(log.drawn(), "a").count("╳") == 1


def test_the_time_between_two_engines_takes_no_room():
    week = 7 * 86_400
    log = Log("a", "b")
    log.start(0, "a")
    log.complete(1, "a")
    log.start(1, "b")
    log.add(1.5, e.NodeCheckpointed(node_id=NodeId("b"), attempt=1, state=msgspec.Raw(b"1")))
    log.claim(week, lost=True)
    log.add(week, e.AttemptLost(node_id=NodeId("b"), attempt=1), e.RunRecovered(reason="engine lost"))
    log.start(week, "b", attempt=2)
    log.complete(week + 1, "b", attempt=2)

    lines = log.drawn()

    assert row(lines, "a").count("█") > 15
    assert re.search(r"░+╎ ?█+", row(lines, "b"))
    assert row(lines, "b").endswith("1.0 s · 1 lost")
    assert any("the process died" in line and "(6 d 23 h later)" in line for line in lines)
    assert lines[2].endswith("2.5 s")


def test_what_runs_reaches_to_the_present_while_it_is_driven_and_is_lost_if_not():
    log = Log("a")
    log.start(0, "a")

    assert "▒" * 20 in row(log.drawn(now=5), "a")
    assert "░" in row(log.drawn(), "a")


def test_many_resumptions_do_not_crowd_out_the_picture():
    log = Log("a")
    for number in range(200):
        log.claim(number, lost=True)
    log.start(200, "a")
    log.complete(201, "a")

    lines = log.drawn()

    assert all(words.cells(line) <= 80 for line in lines)
    assert "195 earlier breaks" in "\n".join(lines)


def test_a_node_beside_the_groups_is_called_by_its_whole_name():
    names = [f"job-with-number-{number}" for number in range(MOST_ROWS + 1)]
    log = Log(*names, stage="jobs")
    log.start(0, names[7])
    log.fail(1, names[7], final=True)

    assert row(log.drawn(width=100), names[7]).startswith("✗")


def test_many_nodes_are_drawn_in_groups_and_those_with_trouble_by_themselves():
    log = Log(*(f"n{number}" for number in range(MOST_ROWS + 60)), stage="work")
    for number in range(MOST_ROWS + 60):
        log.start(number / 100, f"n{number}")
        if number == 7:
            log.fail(number / 100 + 0.1, "n7")
            log.start(number / 100 + 0.2, "n7", attempt=2)
        log.complete(number / 100 + 1, f"n{number}", attempt=2 if number == 7 else 1)

    lines = log.drawn()

    assert len(lines) <= 6
    assert re.search("▁.*█.*▁", row(lines, "work"))
    assert "100 of 100 nodes" in row(lines, "work")
    assert "1 failed" in row(lines, "n7")


@pytest.mark.parametrize("width", [60, 80, 160])
def test_no_line_is_wider_than_the_paper(width: int):
    log = Log("a", "a name that is much longer than it should be for any picture of this kind", "名前" * 20)
    log.start(0, "a")
    log.complete(1, "a")

    assert all(words.cells(line) <= width for line in log.drawn(width=width))


def test_nothing_is_drawn_of_a_run_in_which_nothing_was_tried():
    assert Log("a").drawn() == []


def picture_of(log: Log, *, height: int = 40, watch: Watch | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=80, height=height, force_terminal=True, color_system=None)
    picture = Picture(console)
    try:
        return [line.plain for line in picture.lines(watch or log.watch())]
    finally:
        picture.close()


def test_the_live_picture_shows_each_node_and_a_summary():
    log = Log("a", "b", "c")
    log.start(0, "a")
    log.complete(1, "a")
    log.start(1, "b")
    watch = log.watch()
    watch.flash(Flash(run_id=RUN, node_id=NodeId("b"), kind="progress", done=3, total=10))
    watch.flash(Flash(run_id=RUN, node_id=NodeId("b"), kind="publish", value="one\ntwo \x1b[2J"))

    lines = picture_of(log, watch=watch)

    assert lines[0].startswith("● w  run r1")
    assert lines[1].split() == ["✓", "a", "500", "ms"]
    assert "30%" in lines[2]
    assert lines[2].endswith("two \\x1b[2J")
    assert lines[3].split() == ["·", "c"]
    assert "1 running" in lines[4]
    assert "1 of 3 nodes" in lines[4]


def test_the_live_picture_says_that_another_process_drives_the_run():
    log = Log("a")
    log.start(0, "a")
    watch = log.watch()
    watch.is_elsewhere = True

    driven = picture_of(log, watch=watch)
    log.complete(1, "a")
    log.add(1, e.RunCompleted())
    ended = log.watch()
    ended.is_elsewhere = True

    assert driven[0] == "● w  run r1  driven by another process"
    assert "another process" not in picture_of(log, watch=ended)[0]


def test_the_live_picture_folds_what_has_ended_and_fits_the_screen():
    log = Log(*(f"n{number}" for number in range(300)), stage="work")
    for number in range(200):
        log.start(number, f"n{number}")
        if number != 150:
            log.complete(number, f"n{number}")

    lines = picture_of(log, height=20)

    assert len(lines) < 20
    assert any("✓ 199 completed   · 100 idle" in line for line in lines)
    assert any("n150" in line for line in lines)
    assert not any("n151 " in line for line in lines)


def test_every_status_has_a_sign():
    assert NODE_MARKS.keys() == set(NodeStatus)
    assert RUN_MARKS.keys() == set(RunStatus)


NODE = NodeId("fetch")


@pytest.mark.parametrize(
    ("event", "told"),
    [
        (e.NodeStarted(node_id=NODE, attempt=1), "fetch started"),
        (e.NodeStarted(node_id=NODE, attempt=2), "fetch started (attempt 2)"),
        (e.NodeScheduled(node_id=NODE, attempt=2, due=1_500_000), "fetch waits 1.5 s for attempt 2"),
        (e.NodeCompleted(node_id=NODE, attempt=1, duration_ms=1_300), "fetch completed in 1.3 s"),
        (e.NodeFailed(node_id=NODE, attempt=3, error=BOOM), "fetch failed: ValueError: boom"),
        (
            e.NodeFailed(node_id=NODE, attempt=1, error=BOOM, final=False),
            "fetch failed at attempt 1, to be tried again: ValueError: boom",
        ),
        (e.NodeInDoubt(node_id=NODE, attempt=1), "fetch in doubt"),
        (e.NodeSkipped(node_id=NODE, reason="its condition is false"), "fetch skipped: its condition is false"),
        (e.AttemptLost(node_id=NODE, attempt=1, reason="engine lost"), "fetch lost attempt 1: engine lost"),
        (e.RunCompleted(duration_ms=61_000), "run completed in 1 min 1 s"),
        (e.RunFailed(error=BOOM), "run failed: ValueError: boom"),
        (e.RunCancelled(reason="enough"), "run cancelled: enough"),
        (e.StageStarted(stage="late"), "stage late started"),
        (e.SignalReceived(name="go", signal_id="1", value=msgspec.Raw(b"1")), "run received signal 'go': 1"),
    ],
)
def test_events_are_told_in_words(event: e.AnyEvent, told: str):
    entry = e.Recorded(seq=Seq(1), id=EventId("1"), branch_id=BranchId(1), epoch=Epoch(1), at=0, event=event)

    assert sentence(entry) == told
    assert is_news(event)


def test_an_error_that_a_node_has_told_is_not_told_again_by_the_run():
    assert not is_news(e.RunFailed(node_id=NODE, error=BOOM))


@pytest.mark.parametrize(
    ("micros", "told"),
    [
        (0, "<1 ms"),
        (12_000, "12 ms"),
        (999_400, "999 ms"),
        (999_600, "1.0 s"),
        (59_940_000, "59.9 s"),
        (59_960_000, "1 min"),
        (3_600_000_000, "1 h"),
        (90_061_000_000, "1 d 1 h"),
        (-5, "<1 ms"),
    ],
)
def test_lengths_of_time_are_written_in_at_most_two_units(micros: int, told: str):
    assert words.duration(micros) == told


def test_stored_values_are_written_as_people_would():
    assert words.value_line(msgspec.Raw(b'"text"')) == "text"
    assert words.value_line(msgspec.Raw(b'{"a":[1,null]}')) == '{"a":[1,null]}'
    assert words.value_line(msgspec.Raw(b'{"$":"datetime","v":"2026-01-01T00:00:00Z"}')) == "2026-01-01T00:00:00Z"
    reference = b'{"$":"blob","v":{"sha256":"abcdef0123456789","size":1500000}}'
    assert words.value_line(msgspec.Raw(reference)) == "<1.5 MB, sha256 abcdef012345>"


def test_texts_are_cut_by_columns_not_by_letters():
    assert words.fitted("名前です", 5) == "名前…"
    assert words.padded("名", 4) == "名  "
    assert words.fitted("abc", 3) == "abc"
