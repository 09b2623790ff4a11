"""How streams are drawn and told, from logs that are written by hand: pure, in milliseconds."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from perdure.cli.flowing import rate_text
from perdure.cli.folding import MOST_FAILURES, Folding
from perdure.cli.gantt import draw
from perdure.cli.lines import is_news, sentence
from perdure.cli.live import Picture
from perdure.cli.plainly import Lines
from perdure.cli.terminal import Paper, Pen
from perdure.cli.timeline import timeline_of
from perdure.cli.watch import Watch
from perdure.clock import SystemClock
from perdure.engine.streams.live import EdgeFacts, LiveStreams, NodeFacts
from perdure.graph.model import Edge, Graph, Node
from perdure.ids import BranchId, NodeId, RunId, Seq
from perdure.journal import events as e
from perdure.journal.headway import Headway
from tests.cli.test_pictures import BOOM, SECOND, Log

SOURCE, CALL, READ = NodeId("source"), NodeId("call"), NodeId("read")
GRAPH = Graph(
    name="w",
    nodes=tuple(Node(id=node_id, type="t.work") for node_id in (SOURCE, CALL, READ)),
    edges=(
        Edge(id="e1", source=SOURCE, target=CALL, target_handle="x", mode="map"),
        Edge(id="e2", source=CALL, target=READ, target_handle="xs", mode="stream"),
    ),
)


class Hand(SystemClock):
    """A clock that is moved by hand."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def now_micros(self) -> int:
        return int(self.seconds * SECOND)

    def monotonic(self) -> float:
        return self.seconds


class StreamLog(Log):
    """A source that gives items, a node that is called for each, and one that reads what comes of it."""

    def __init__(self) -> None:
        super().__init__(SOURCE, CALL, READ)
        for node_id in (SOURCE, CALL, READ):
            self.add(
                0,
                e.NodeScheduled(node_id=node_id, attempt=1),
                e.NodeStarted(node_id=node_id, attempt=1, streams=True, generates=node_id == SOURCE),
            )

    def record(self, seconds: float, node_id: NodeId, first: int, count: int) -> None:
        self.add(seconds, e.OutboxEnqueued(node_id=node_id, attempt=1, ranges=((first, count),), digest=""))

    def fail_item(self, seconds: float, position: int, *, final: bool = True) -> None:
        self.add(seconds, failed_item(position, final=final))

    def watch(self) -> Watch:
        watch = Watch(RunId("r1"), self.nodes, known=0, graph=GRAPH)
        watch.hear(self.entries)
        return watch


def failed_item(position: int, *, final: bool = True) -> e.ItemFailed:
    return e.ItemFailed(node_id=CALL, attempt=1, position=position, item_attempt=1, error=BOOM, final=final)


def in_full_flow() -> tuple[StreamLog, Watch]:
    log = StreamLog()
    for second in range(1, 21):
        log.record(second, SOURCE, (second - 1) * 500, 500)
        log.record(second, CALL, (second - 1) * 100, 100)
    log.fail_item(20, 2_000)
    log.fail_item(20, 2_001, final=False)
    watch = log.watch()
    watch.look = lambda: LiveStreams(
        nodes={
            SOURCE: NodeFacts(is_blocked=True),
            CALL: NodeFacts(running=8, total=12_000),
            READ: NodeFacts(is_starved=True),
        },
        edges=(
            EdgeFacts(
                source=SOURCE, target=CALL, target_handle="x", taken=2_008, buffered=512, behind=7_480, is_over=False
            ),
            EdgeFacts(source=CALL, target=READ, target_handle="xs", taken=1_990, buffered=0, behind=0, is_over=False),
        ),
    )
    return log, watch


def picture_of(watch: Watch, *, width: int = 80, now: float = 21) -> dict[str, str]:
    console = Console(file=io.StringIO(), width=width, height=40, force_terminal=True, color_system=None)
    picture = Picture(console, Hand(now))
    try:
        lines = [line.plain for line in picture.lines(watch)]
    finally:
        picture.close()
    assert all(len(line) <= width for line in lines)
    return {name: line for line in lines for name in (SOURCE, CALL, READ) if f" {name} " in line}


def test_the_live_picture_says_how_streams_flow():
    _, watch = in_full_flow()

    rows = picture_of(watch)

    assert rows[SOURCE].endswith("10,000 items      500/s  blocked")
    assert rows[CALL].endswith(" 2,000 of 12,000  100/s  ×8       ← 7,992  ✗ 1  ↻ 1")
    assert rows[READ].endswith(" 1,990 read              starved")


def test_a_wide_picture_has_room_for_a_bar():
    _, watch = in_full_flow()

    assert "━" * 12 in picture_of(watch, width=110)[CALL]
    assert "━" not in picture_of(watch, width=110)[SOURCE]


def test_a_run_that_is_driven_elsewhere_shows_what_is_recorded():
    log, _ = in_full_flow()

    rows = picture_of(log.watch())

    assert rows[CALL].endswith("2,000 items  100/s  ✗ 1  ↻ 1")
    assert rows[READ].split()[1:] == ["read", "21.0", "s"]


@pytest.mark.parametrize(
    ("rate", "told"),
    [(0, "0/s"), (0.05, "3/min"), (0.6, "0.6/s"), (3.44, "3.4/s"), (42.4, "42/s"), (12_345.6, "12,346/s")],
)
def test_rates_are_written_in_few_digits(rate: float, told: str):
    assert rate_text(rate) == told


# Lines


def test_in_a_pipe_progress_is_told_now_and_then(capsys: pytest.CaptureFixture[str]):
    _, watch = in_full_flow()
    clock = Hand(21)
    lines = Lines(clock)

    for _ in range(100):
        clock.seconds += 0.1
        lines.draw(watch)

    told = [line.split(maxsplit=1)[1] for line in capsys.readouterr().out.splitlines()]
    assert 3 <= len(told) <= 6
    assert told[0].startswith("source 10,000 items, ")
    assert told[0].endswith(", blocked")
    assert told[1].startswith("call 2,000 of 12,000 items, ")
    assert told[1].endswith(", 8 at once, 7,992 waiting, 1 failed, 1 tried again")
    assert told[2] == "read 1,990 items read, starved"


def test_in_a_pipe_the_end_of_a_node_says_how_much_it_has_done(capsys: pytest.CaptureFixture[str]):
    log, _ = in_full_flow()
    log.add(20, e.OutboxClosed(node_id=SOURCE, attempt=1, entries=10_000))
    log.complete(20, SOURCE)

    Lines().heard(log.watch(), log.entries)

    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith("source completed in 500 ms: 10,000 items, 500/s")


def test_in_a_pipe_items_that_fail_in_masses_are_only_counted(capsys: pytest.CaptureFixture[str]):
    log = StreamLog()
    for position in range(1_000):
        log.fail_item(1, position)

    Lines().heard(log.watch(), log.entries)

    told = [line for line in capsys.readouterr().out.splitlines() if "item" in line]
    assert len(told) == 3
    assert told[0].endswith("call item 0 failed: ValueError: boom")


# The log


def folded(log: Log) -> list[str]:
    folding = Folding()
    lines = [line for entry in log.entries for line in folding.add(entry)]
    return [*lines, *folding.flush()]


def test_batches_are_folded_between_events_that_matter():
    log = StreamLog()
    before = len(log.entries)
    for number in range(500):
        log.record(1, SOURCE, number, 1)
        log.record(1, CALL, number, 1)
    log.add(2, e.OutboxClosed(node_id=SOURCE, attempt=1, entries=500))
    log.record(3, CALL, 500, 7)

    lines = folded(log)[before:]

    assert [" ".join([line.split()[0], *line.split()[2:]]) for line in lines] == [
        f"{before + 999} source recorded 500 items in 500 batches",
        f"{before + 1000} call recorded 500 items in 500 batches",
        f"{before + 1001} source ended its stream after 500 items",
        f"{before + 1002} call recorded 7 items",
    ]


def test_failures_and_steps_of_items_do_not_drown_the_rest():
    log = StreamLog()
    before = len(log.entries)
    for position in range(100):
        log.record(1, CALL, position, 1)
        log.fail_item(1, position, final=False)
        step = e.StepCompleted(node_id=CALL, attempt=1, name=f"{position}/f", occurrence=0, result=msgspec.Raw(b"1"))
        log.add(1, step)

    lines = folded(log)[before:]

    assert len(lines) == 2 * MOST_FAILURES + 1
    assert lines[1].endswith("call item 0 failed at attempt 1, to be tried again: ValueError: boom")
    assert lines[-1].endswith("call recorded 97 items in 97 batches, completed 98 steps, 97 more failures of items")
    numbers = [int(line.split()[0]) for line in lines]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("event", "told", "news"),
    [
        (e.OutboxEnqueued(node_id=CALL, attempt=1, ranges=((0, 1),), digest=""), "call recorded 1 item", False),
        (e.OutboxClosed(node_id=CALL, attempt=1, entries=1_200), "call ended its stream after 1,200 items", False),
        (failed_item(3), "call item 3 failed: ValueError: boom", True),
        (
            e.BranchCreated(
                branch_id=BranchId(2), parent=BranchId(1), cut=Seq(9), dropped=(CALL, READ), reason="it differs"
            ),
            "run branched: it differs; call, read begin again",
            True,
        ),
        (e.BranchActivated(branch_id=BranchId(2)), "run goes on on branch 2", False),
    ],
)
def test_events_of_streams_are_told_in_words(event: e.AnyEvent, told: str, news: bool):
    log = Log()
    log.add(0, event)

    assert sentence(log.entries[-1]) == told
    assert is_news(event) is news


# The picture over time


@pytest.mark.parametrize("width", [60, 80, 120])
def test_nodes_over_time_say_how_much_they_have_done(width: int):
    log, watch = in_full_flow()
    streams = {
        CALL: Headway(
            done=2_000, total=12_000, failed=1, retrying=2, closed=False, checkpointed=0, items_per_second=99.6
        )
    }
    paper = Paper(width=width, pen=Pen(), is_live=False)

    timeline = timeline_of(log.entries, now=21 * SECOND)
    lines = list(draw(log.nodes, watch.projection.nodes, timeline, paper, streams))

    assert all(len(line) <= width for line in lines)
    assert "21.0 s · 2,000 of 12,000" in lines[1]
    if width > 60:
        assert lines[1].endswith("· 100/s · ✗ 1 · ↻ 2")


def test_an_attempt_that_ended_with_its_branch_does_not_run_on():
    log = StreamLog()
    log.add(
        5,
        e.BranchCreated(branch_id=BranchId(2), parent=BranchId(1), cut=Seq(9), dropped=(CALL,), replayed=SOURCE),
        e.BranchActivated(branch_id=BranchId(2)),
        e.NodeScheduled(node_id=CALL, attempt=1),
        e.NodeStarted(node_id=CALL, attempt=1, streams=True),
    )

    spans = timeline_of(log.entries, now=9 * SECOND).spans[CALL]

    assert [(span.outcome, span.start, span.end) for span in spans] == [
        ("cancelled", 0, 5 * SECOND),
        ("running", 5 * SECOND, 9 * SECOND),
    ]
