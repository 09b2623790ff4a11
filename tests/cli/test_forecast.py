"""How long runs will take, as the command line tells it: in words, in a picture that moves, in lines, and by `show`."""

from __future__ import annotations

import io
import re

import pytest
from msgspec.structs import replace
from rich.console import Console

from perdure.cli.forecast import Forecast, forecast_line, roughly
from perdure.cli.live import Picture
from perdure.cli.plainly import FORECAST_SECONDS, PROGRESS_SECONDS, Lines
from perdure.cli.watch import Watch
from perdure.graph.model import Edge, Graph
from perdure.ids import NodeId, RunId
from perdure.journal import events as e
from perdure.journal.estimate import NOTHING, Estimate, Estimator, Remaining
from perdure.journal.states import RunState, RunStatus
from perdure.journal.times import PastNode, PastRun
from tests.cli.conftest import Cli, read_until
from tests.cli.test_pictures import SECOND, Log
from tests.cli.test_stream_pictures import Hand
from tests.cli.test_terminal import Screen

MINUTE = 60 * SECOND


def estimate(**changes: object) -> Estimate:
    told = Estimate(percent=62.9, remaining=Remaining(about=3 * MINUTE, low=2 * MINUTE, high=5 * MINUTE), based_on=12)
    return replace(told, **changes)


def run_in(status: RunStatus, *, wake_at: int | None = None) -> RunState:
    return replace(Log("a").watch().run, status=status, wake_at=wake_at)


RUNNING = run_in(RunStatus.RUNNING)


def told(of: Estimate, run: RunState = RUNNING, *, is_driven: bool = True) -> str:
    return forecast_line(of, run, is_driven=is_driven)


def test_an_estimate_is_one_line():
    assert told(estimate()) == "62 %, about 3 min left (2 to 5 min, by 12 earlier runs)"


def test_what_is_not_known_is_not_told():
    assert told(NOTHING) == ""
    assert told(estimate(percent=None)) == "about 3 min left (2 to 5 min, by 12 earlier runs)"
    assert told(estimate(remaining=None)) == "62 % (by 12 earlier runs)"
    assert told(estimate(remaining=None, percent=None)) == ""


def test_a_band_that_nobody_would_tell_apart_is_left_out():
    narrow = Remaining(about=180 * SECOND, low=178 * SECOND, high=182 * SECOND)
    wide = Remaining(about=180 * SECOND, low=40 * SECOND, high=7_200 * SECOND)

    assert told(estimate(remaining=narrow)) == "62 %, about 3 min left (by 12 earlier runs)"
    assert told(estimate(remaining=wide)) == "62 %, about 3 min left (40 s to 2 h, by 12 earlier runs)"


def test_what_has_not_ended_is_never_whole():
    assert told(estimate(percent=100.0, remaining=None)) == "99 % (by 12 earlier runs)"


def test_it_is_said_that_waiting_is_not_counted():
    waits = estimate(waits=True)

    assert told(waits).startswith("62 %, about 3 min of work left (")
    for held_up in (
        run_in(RunStatus.PAUSED),
        run_in(RunStatus.AWAITING_INPUT),
        run_in(RunStatus.SUSPENDED),
    ):
        assert told(waits, held_up, is_driven=False).startswith("62 %, about 3 min left when it goes on (")
    assert told(estimate(), RUNNING, is_driven=False).startswith("62 %, about 3 min left when it goes on (")
    asleep = run_in(RunStatus.SUSPENDED, wake_at=7)
    assert told(estimate(), asleep, is_driven=False).startswith("62 %, about 3 min left (")


def test_nodes_that_take_longer_than_ever_are_named():
    one = estimate(remaining=None, overdue=("fetch\x1b",))
    many = estimate(overdue=("a", "b", "c", "d", "e"))

    assert told(one) == "62 % (by 12 earlier runs); fetch\\x1b takes longer than in any of them"
    assert told(many).endswith("; a, b, c, 2 more nodes take longer than in any of them")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "1 s"),
        (0.4, "1 s"),
        (9.4, "9 s"),
        (12, "10 s"),
        (88, "90 s"),
        (95, "2 min"),
        (5_300, "88 min"),
        (5_500, "1.5 h"),
        (7_200, "2 h"),
        (100_000, "28 h"),
        (130_000, "1.5 d"),
        (864_000, "10 d"),
    ],
)
def test_times_are_told_as_exactly_as_they_are_known(seconds: float, words: str):
    assert " ".join(roughly(int(seconds * SECOND))) == words


# Watching

GRAPH = Graph(
    name="w",
    nodes=tuple(Log("a", "b").nodes),
    edges=(Edge(id="e", source=NodeId("a"), target=NodeId("b"), target_handle="x"),),
)


def earlier(*, a: int = 10, b: int = 90) -> PastRun:
    """Return a run in which two nodes followed each other."""

    def past(name: str, start: int, end: int) -> PastNode:
        return PastNode(
            node_id=NodeId(name),
            scheduled_at=start * SECOND,
            started_at=start * SECOND,
            ended_at=end * SECOND,
            duration_ms=(end - start) * 1_000,
            items=None,
        )

    return PastRun(run_id=RunId("p"), nodes=(past("a", 0, a), past("b", a, a + b)))


def watched(runs: int = 3, *, is_over: bool = False) -> Watch:
    log = Log("a", "b")
    log.start(0, "a")
    log.complete(10, "a")
    log.start(10, "b")
    if is_over:
        log.complete(100, "b")
        log.add(100, e.RunCompleted(outputs={}))
    watch = Watch(RunId("r1"), log.nodes, known=0, graph=GRAPH)
    watch.hear(log.entries)
    watch.estimator = Estimator(GRAPH, [earlier()] * runs)
    return watch


def picture_of(watch: Watch, clock: Hand) -> list[str]:
    console = Console(file=io.StringIO(), width=80, height=40, force_terminal=True, color_system=None)
    picture = Picture(console, clock)
    try:
        return [line.plain for line in picture.lines(watch)]
    finally:
        picture.close()


def test_the_picture_ends_with_how_long_it_will_take():
    assert picture_of(watched(), Hand(55))[-1] == "  55 %, about 45 s left (40 to 50 s, by 3 earlier runs)"
    assert "%" not in "".join(picture_of(watched(2), Hand(55)))


def test_a_run_that_has_ended_takes_no_longer():
    watch = watched(is_over=True)

    assert watch.estimate(now=100 * SECOND) == NOTHING
    assert "%" not in "".join(picture_of(watch, Hand(100)))


def test_what_was_estimated_a_moment_before_the_end_is_not_told_after_it():
    clock = Hand(50)
    forecast = Forecast(clock)

    assert "left" in forecast.line(watched())
    assert forecast.line(watched(is_over=True)) == ""


def test_an_estimate_is_made_once_a_second_at_most():
    clock, watch = Hand(50), watched()
    forecast = Forecast(clock)

    first = forecast.of(watch)
    clock.seconds = 50.9
    assert forecast.of(watch) is first
    clock.seconds = 51.1
    assert forecast.of(watch) != first


def test_an_estimate_that_takes_long_is_made_more_seldom():
    clock, watch = Hand(50), watched()
    forecast = Forecast(clock)
    estimate_at = watch.estimate

    def slowly(*, now: int) -> Estimate:
        clock.seconds += 0.5
        return estimate_at(now=now)

    watch.estimate = slowly  # pyright: ignore[reportAttributeAccessIssue]
    first = forecast.of(watch)
    clock.seconds = 59.9
    assert forecast.of(watch) is first
    clock.seconds = 60.1
    assert forecast.of(watch) != first


def test_a_pipe_is_told_now_and_then(capsys: pytest.CaptureFixture[str]):
    clock, watch = Hand(20), watched()
    lines = Lines(clock)

    def drawn_at(seconds: float) -> str:
        clock.seconds = seconds
        lines.draw(watch)
        return re.sub(r"^[\d:]+ ", "", capsys.readouterr().out)

    assert drawn_at(20 + PROGRESS_SECONDS - 1) == ""
    assert drawn_at(25) == "run 25 %, about 75 s left (70 to 80 s, by 3 earlier runs)\n"
    assert drawn_at(25 + FORECAST_SECONDS - 1) == ""
    assert drawn_at(60) == "run 60 %, about 40 s left (35 to 45 s, by 3 earlier runs)\n"
    assert drawn_at(500) == "run 99 % (by 3 earlier runs); b takes longer than in any of them\n"
    assert drawn_at(600) == ""


# In earnest

STEPS = """
import time
from perdure import node, workflow

@node
def prepare() -> int:
    time.sleep(0.1)
    return 1

@node
def work(n: int, seconds: float) -> int:
    time.sleep(seconds)
    return n

@workflow
def steps(seconds: float = 0.2) -> int:
    return work(prepare(), seconds)
"""


@pytest.fixture
def known(cli: Cli) -> Cli:
    """A store with three completed runs."""
    cli.write("flow.py", STEPS)
    for number in range(3):
        cli("run", "flow.py", "--run-id", f"earlier-{number}")
    return cli


@pytest.mark.slow
def test_show_says_how_long_a_run_will_take_that_another_process_drives(known: Cli):
    process = known.start("run", "flow.py", "-i", "seconds=60", "--run-id", "r1")
    read_until(process, "work started")

    shown = known("show", "r1").stdout
    document = known.json("show", "r1")

    assert re.search(r"^so far  \d+ %.* \(.*by 3 earlier runs\)", shown, re.MULTILINE), shown
    assert document["progress"]["based_on_runs"] == 3
    assert 10 < document["progress"]["percent"] < 100
    work = document["nodes"][1]
    assert work["usual_seconds"] == pytest.approx(0.25, abs=0.15)
    assert work["duration_seconds"] > 0
    process.kill()
    process.wait()
    left = known("show", "r1").stdout
    assert re.search(r"^so far  \d+ %, about 1 s left when it goes on \(by 3 earlier runs\)$", left, re.MULTILINE), left
    assert "so far" not in known("show", "earlier-1").stdout


@pytest.mark.slow
def test_a_terminal_shows_how_long_a_run_will_take(known: Cli):
    screen = Screen(known, "run", "flow.py", "-i", "seconds=2", env={"NO_COLOR": "1"})

    screen.read_until("by 3 earlier runs)")

    assert screen.close() == 0
