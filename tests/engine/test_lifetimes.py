"""The life of an engine: when it can be used, and that it can always end."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from perdure import Engine, EngineSettings, Workflow, ask, collect, node, workflow
from perdure.engine.driving.stopping import Stopping
from perdure.errors import EngineStopped, RunFailed, RunIdTaken
from perdure.ids import RunId
from perdure.journal.events import AttemptLost, RunSettings
from perdure.journal.states import NodeStatus, RunStatus
from perdure.testing.loop import run_virtual
from tests.crash.backends import opened_store
from tests.engine.engines import assert_whole, engine_on


@node
async def plain(x: int) -> int:
    return x


@node
async def stubborn(x: int) -> int:
    """Never end, whoever asks."""
    while True:
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(3_600)


@node
async def patient(x: int) -> int:
    await asyncio.sleep(3_600)
    return x


@node
async def length(text: str) -> int:
    return len(text)


@workflow
def plainly(x: int) -> int:
    return plain(x)


@workflow
def stubbornly(x: int) -> int:
    return stubborn(x)


@workflow
def patiently(x: int) -> int:
    return patient(x)


@workflow
def measured(text: str) -> int:
    return length(text)


# Ending


def test_a_body_that_swallows_every_cancellation_is_left_behind(sqlite_url: str, caplog: pytest.LogCaptureFixture):
    async def main() -> None:
        async with opened_store(sqlite_url) as store:
            engine = await engine_on(store).__aenter__()
            await engine.start(stubbornly, run_id="run", x=1)
            await asyncio.sleep(1)
            stopping = asyncio.get_running_loop().create_task(engine.stop(grace_seconds=2))
            await asyncio.sleep(3)
            stored = await store.load_run(RunId("run"))
            assert stored is not None
            assert stored.owner is None
            assert await store.list_engines() == []  # others need not wait for the body
            await asyncio.wait((stopping,), timeout=10)
            assert stopping.done()
            await stopping

    with caplog.at_level(logging.ERROR):
        run_virtual(main())

    (said,) = (record for record in caplog.records if record.message == "bodies_left_behind")
    assert said.tasks == ["run run"]  # type: ignore[attr-defined]


PROGRAM = """
import asyncio, sys
from perdure import Context, Engine, node, workflow

@node
async def stubborn(x: int) -> int:
    print("running", flush=True)
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

@node
async def long(x: int) -> int:
    print("running", flush=True)
    await asyncio.sleep(1.5)
    return x

@workflow
def stubbornly(x: int) -> int:
    return stubborn(x)

@workflow
def chain(x: int) -> int:
    return long(long(x))
"""


Start = Callable[[str], subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start a program with the workflows above and this script, in a folder of its own. None outlives the test."""
    with ExitStack() as stack:

        def begin(script: str) -> subprocess.Popen[str]:
            (tmp_path / "program.py").write_text(PROGRAM + textwrap.dedent(script))
            command = [sys.executable, "program.py"]
            process = subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield begin


def until_running(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"


def test_a_program_ends_though_a_body_of_it_does_not(start: Start):
    process = start(
        """
        from perdure.engine.owning import background
        background.STUBBORN_SECONDS = 1

        async def main():
            async with Engine("sqlite:///perdure.db") as opened:
                await opened.start(stubbornly, x=1)
                await asyncio.sleep(0.5)
                await opened.stop(grace_seconds=0)
            print("stopped", flush=True)

        asyncio.run(main())
        print("ended", flush=True)
        """,
    )
    out, err = process.communicate(timeout=60)

    assert out.split() == ["running", "stopped", "ended"]
    assert process.returncode == 0, err
    assert "destroyed" not in err


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, -signal.SIGINT), (signal.SIGTERM, 128 + signal.SIGTERM)])
def test_an_interrupted_run_says_what_happens_and_how_to_go_on(start: Start, number: int, code: int):
    process = start('chain.options(run_id="mine").run(x=1)')
    until_running(process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)

    assert process.returncode == code
    assert "perdure: stopping; nodes that run have up to 20 s to end" in err
    assert "`perdure resume mine`" in err
    assert err.count("  File ") <= 6
    again = start('print(chain.options(run_id="mine").run(x=1))')
    out, _ = again.communicate(timeout=60)
    assert out.split() == ["running", "1"]  # the first node was allowed to end


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_ends_the_program_at_once(start: Start, number: int):
    process = start("stubbornly.run(x=1)")
    until_running(process)
    process.send_signal(number)
    assert process.stderr is not None
    process.stderr.readline()
    process.send_signal(number)
    process.communicate(timeout=15)

    assert process.returncode == -number


def test_signals_mean_afterwards_what_they_meant_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)

    def mine(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGTERM, mine)
    try:
        assert plainly.run(x=1) == 1
        assert signal.getsignal(signal.SIGTERM) is mine
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        assert plainly.run(x=1) == 1
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def failing_when(stops: asyncio.Event, begun: asyncio.Event, *, once: bool) -> Workflow[..., int]:
    """A body that fails when it is told that its engine stops, the first time."""

    @node(once=once)
    async def failing(x: int) -> int:
        if not begun.is_set():
            begun.set()
            await stops.wait()
            raise OSError("its program was ended")
        return x

    @workflow
    def failing_once(x: int) -> int:
        return failing(x)

    return failing_once


@pytest.mark.parametrize("once", [False, True])
async def test_what_fails_while_its_engine_stops_is_tried_again_unless_it_must_not_be(store_url: str, once: bool):
    stops, begun = asyncio.Event(), asyncio.Event()
    flow = failing_when(stops, begun, once=once)
    async with Engine(store_url) as engine:
        await engine.start(flow, run_id="r1", x=7)
        await begun.wait()
        engine.drain()  # as a handler of signals does
        stops.set()

    async with Engine(store_url, recover=False) as engine:
        run = await engine.get("r1")
        if once:
            assert (await run.state()).status is RunStatus.FAILED
            return
        await engine.adopt("r1")
        assert await run.result() == 7
        lost = [entry.event async for entry in run.events() if isinstance(entry.event, AttemptLost)]
        assert [event.reason for event in lost] == [
            "it failed while its engine stopped: OSError: its program was ended"
        ]


async def test_what_fails_each_time_its_engine_stops_has_failed_after_some(sqlite_url: str):
    begun, stops = asyncio.Event(), asyncio.Event()

    @node
    async def failing(x: int) -> int:
        begun.set()
        await stops.wait()
        raise OSError("always")

    @workflow
    def flow(x: int) -> int:
        return failing(x)

    stopped, status = 0, RunStatus.RUNNING
    while status is RunStatus.RUNNING and stopped < 20:
        begun.clear(), stops.clear()
        async with Engine(sqlite_url, recover=False) as engine:
            await engine.start(flow, run_id="r1", x=7)
            await begun.wait()
            engine.drain()
            stopped += 1
            stops.set()
        async with Engine(sqlite_url, recover=False) as observer:
            run = await observer.get("r1")
            status = await run.status()
            await assert_whole(observer, run)

    assert (status, stopped) == (RunStatus.FAILED, RunSettings().max_recoveries + 1)


is_signalled: list[bool] = []
"""Whether a signal ends what the next body has started, and comes to this process as well."""


def perhaps_ended(x: int) -> int:
    if is_signalled:
        is_signalled.clear()
        os.kill(os.getpid(), signal.SIGUSR1)
        raise OSError("its program was ended")
    return x


@node
async def on_the_loop(x: int) -> int:
    return perhaps_ended(x)


@node
def in_a_thread(x: int) -> int:
    return perhaps_ended(x)


@workflow
def alone(x: int) -> int:
    return on_the_loop(x)


@workflow
def threaded(x: int) -> int:
    return in_a_thread(x)


@workflow
def per_item(x: int) -> list[int]:
    return collect(on_the_loop.map([x]))


@pytest.mark.parametrize(
    ("flow", "result"), [(alone, 7), (threaded, 7), (per_item, [7])], ids=["alone", "threaded", "mapped"]
)
async def test_a_signal_that_has_come_is_heard_before_what_fails_because_of_it(
    sqlite_url: str, flow: Workflow[..., object], result: object
):
    loop = asyncio.get_running_loop()
    async with Engine(sqlite_url) as first:
        loop.add_signal_handler(signal.SIGUSR1, first.drain)
        try:
            is_signalled.append(True)
            run = await first.start(flow, run_id="r1", x=7)
            with pytest.raises(EngineStopped):
                await run.result()
        finally:
            loop.remove_signal_handler(signal.SIGUSR1)
    assert not is_signalled
    async with Engine(sqlite_url) as engine:
        run = await engine.get("r1")
        assert await run.result() == result
        await assert_whole(engine, run)


async def test_a_signal_is_heard_before_what_fails_because_of_it_also_beside_bodies_that_end(sqlite_url: str):
    """What happens in one round of the loop is seen to together, and the next round may have been asked for by another."""
    gate = asyncio.Event()

    @node
    async def failing_once(x: int) -> int:
        if gate.is_set():
            return x
        await gate.wait()
        await asyncio.sleep(0)  # it goes on in the next round, before what the other one's end asks for
        os.kill(os.getpid(), signal.SIGUSR1)
        raise OSError("its program was ended")

    @node
    async def ending(x: int) -> int:
        await gate.wait()
        return x

    @workflow
    def beside(x: int) -> tuple[int, int]:
        return failing_once(x), ending(x)

    loop = asyncio.get_running_loop()
    async with Engine(sqlite_url) as first:
        loop.add_signal_handler(signal.SIGUSR1, first.drain)
        try:
            run = await first.start(beside, run_id="r1", x=7)
            while [found.status for found in (await run.load()).nodes] != [NodeStatus.RUNNING] * 2:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)  # both wait for the gate
            gate.set()
            with pytest.raises(EngineStopped):
                await run.result()
        finally:
            loop.remove_signal_handler(signal.SIGUSR1)
    async with Engine(sqlite_url) as engine:
        assert await (await engine.get("r1")).result() == (7, 7)


def test_a_program_whose_run_waits_for_somebody_says_so(sqlite_url: str, capsys: pytest.CaptureFixture[str]):
    @workflow
    def asking() -> str:
        return ask("who?")

    def answer() -> None:
        async def main() -> None:
            async with Engine(sqlite_url, workflows=(), recover=False) as engine:
                while not (asked := await engine.questions()):
                    await asyncio.sleep(0.01)
                while "waits" not in said():
                    await asyncio.sleep(0.01)
                await (await engine.get("r 1")).answer(asked[0].interaction_id, "me")

        asyncio.run(main())

    told: list[str] = []

    def said() -> str:
        told.append(capsys.readouterr().err)
        return "".join(told)

    someone = threading.Thread(target=answer)
    someone.start()
    assert asking.options(store=sqlite_url, run_id="r 1").run() == "me"
    someone.join()
    assert said().count("perdure: run 'r 1' waits for somebody: `perdure show 'r 1'` tells") == 1


def test_a_program_that_is_interrupted_hears_that_before_what_fails_because_of_it(sqlite_url: str, tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(
        textwrap.dedent(
            f"""
            import os, signal
            from perdure import node, workflow

            @node
            async def body() -> int:
                if not os.path.exists("interrupted"):
                    open("interrupted", "w").close()
                    os.kill(os.getpid(), signal.SIGINT)
                    raise OSError("its program was ended")
                return 7

            @workflow
            def flow() -> int:
                return body()

            print(flow.options(store={sqlite_url!r}, run_id="r1").run())
            """
        )
    )

    first, second = (
        subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        for _ in range(2)
    )

    assert first.returncode != 0
    assert "KeyboardInterrupt" in first.stderr
    assert (second.returncode, second.stdout) == (0, "7\n"), second.stderr


@pytest.mark.parametrize("rounds", [0, 1])
async def test_a_failure_of_what_must_not_be_repeated_counts_although_the_engine_stops(store_url: str, rounds: int):
    @node(once=True)
    async def failing_once(x: int) -> int:
        engine.drain(0)
        for _ in range(rounds):  # later it is told to stop, and left behind at once
            await asyncio.sleep(0)
        raise OSError("a failure that is known")

    @workflow
    def flow(x: int) -> int:
        return failing_once(x)

    async with Engine(store_url) as engine:
        await engine.start(flow, run_id="r1", x=7)
        with suppress(EngineStopped, RunFailed):
            await (await engine.get("r1")).result()
    async with Engine(store_url, recover=False) as observer:
        run = await observer.get("r1")
        (lone,) = (await run.load()).nodes
        assert lone.status is NodeStatus.FAILED
        await assert_whole(observer, run)


async def test_an_engine_that_is_told_to_drain_while_it_opens_takes_nothing(sqlite_url: str):
    engine = Engine(sqlite_url)
    asyncio.get_running_loop().call_soon(engine.drain)
    async with engine:
        with pytest.raises(EngineStopped):
            await engine.start(alone, x=1)


def test_an_engine_that_drains_lets_go_of_all_its_runs_and_takes_no_more(sqlite_url: str):
    async def main() -> None:
        async with engine_on(sqlite_url) as engine:
            runs = [await engine.start(patiently, x=1) for _ in range(3)]
            engine.drain(grace_seconds=1)
            engine.drain(grace_seconds=1_000)  # the first word counts
            with pytest.raises(EngineStopped):
                await engine.start(patiently, x=1)
            for run in runs:
                with pytest.raises(EngineStopped):
                    await run.result()
            began = asyncio.get_running_loop().time()
            await engine.stop()
            assert asyncio.get_running_loop().time() - began < 10
        engine.drain()  # no harm, however late

    run_virtual(main())


async def test_whoever_stops_an_engine_that_is_being_stopped_waits_for_the_same_end(sqlite_url: str):
    may_end = asyncio.Event()

    @node
    async def ending(x: int) -> int:
        await may_end.wait()
        return x

    @workflow
    def flow(x: int) -> int:
        return ending(x)

    async with asyncio.TaskGroup() as group:
        async with Engine(sqlite_url) as engine:
            run = await engine.start(flow, run_id="r1", x=7)
            stopping = group.create_task(engine.stop())
            await asyncio.sleep(0)  # it has begun
            asyncio.get_running_loop().call_later(0.1, may_end.set)
        assert stopping.done()
    async with Engine(sqlite_url) as observer:
        run = await observer.get("r1")
        assert await run.result() == 7
        assert [entry.event async for entry in run.events() if isinstance(entry.event, AttemptLost)] == []


async def test_a_bug_in_one_run_keeps_no_other_from_being_let_go_of(sqlite_url: str, monkeypatch: pytest.MonkeyPatch):
    wind_down, bugs = Stopping.wind_down, [RuntimeError("a bug of ours")]

    def buggy(stopping: Stopping, reason: str, grace_seconds: float) -> None:
        if bugs:
            raise bugs.pop()
        wind_down(stopping, reason, grace_seconds)

    async with Engine(sqlite_url) as engine:
        for number in range(3):
            await engine.start(patiently, run_id=f"r{number}", x=1)
        monkeypatch.setattr(Stopping, "wind_down", buggy)
        engine.drain(0.1)
        async with asyncio.timeout(10):
            await engine.stop()
    assert not bugs


# Being open


async def test_a_run_whose_task_is_cancelled_begins_nothing_more(sqlite_url: str):
    async with Engine(sqlite_url) as engine:
        run = await engine.start(patiently, x=1)
        driver = engine.driver_of(run.run_id)
        assert driver is not None
        (driving,) = [task for task in asyncio.all_tasks() if task.get_name() == f"run {run.run_id}"]
        driving.cancel()  # as a loop does with all tasks when it ends
        await asyncio.sleep(0)
        work = driver.stored()

        driver.spawn(work)

        assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED


def after_one_that_does_not_stop(begun: asyncio.Event, *, pure: bool) -> Workflow[..., int]:
    """Two bodies in sequence, of which the first takes no notice of being cancelled."""

    @node(pure=pure)
    async def stubborn(x: int) -> int:
        if not begun.is_set():
            begun.set()
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)
        return x

    @node(pure=pure)
    async def after(x: int) -> int:
        return x + 1

    @workflow
    def in_sequence(x: int) -> int:
        return after(stubborn(x))

    return in_sequence


@pytest.mark.parametrize("pure", [True, False])
async def test_a_body_that_ends_when_its_run_is_cancelled_is_followed_by_none(
    store_url: str, pure: bool, caplog: pytest.LogCaptureFixture
) -> None:
    begun = asyncio.Event()
    flow = after_one_that_does_not_stop(begun, pure=pure)
    async with Engine(store_url) as engine:
        run = await engine.start(flow, x=1)
        await begun.wait()
        (driving,) = [task for task in asyncio.all_tasks() if task.get_name() == f"run {run.run_id}"]
        driving.cancel()
        await asyncio.wait([driving])
        gc.collect()  # a coroutine that nobody has awaited would be told of
    async with Engine(store_url) as engine, asyncio.timeout(20):
        run = await engine.get(run.run_id)
        assert await run.result() == 2

    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


async def test_an_engine_that_is_not_open_says_so(sqlite_url: str):
    engine = Engine(sqlite_url)
    for call in (engine.start(plainly, x=1), engine.get("run"), engine.list(), engine.adopt("run")):
        with pytest.raises(EngineStopped, match="async with"):
            await call
    await engine.stop()


async def test_an_engine_that_has_stopped_says_so(sqlite_url: str):
    async with Engine(sqlite_url) as engine:
        run = await engine.start(plainly, x=1)
        await run.result()
    for call in (run.status, run.result, run.load, run.cancel, engine.list):
        with pytest.raises(EngineStopped, match="has stopped"):
            await call()
    with pytest.raises(EngineStopped, match="once"):
        await engine.__aenter__()


async def test_an_engine_belongs_to_the_process_that_opened_it(sqlite_url: str):
    async with Engine(sqlite_url) as engine:
        reader, writer = os.pipe()
        if (child := os.fork()) == 0:
            try:
                _ = engine.store
                os.write(writer, b"used")
            except EngineStopped as refusal:
                os.write(writer, str(refusal).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)  # noqa: ASYNC222  # it ends at once
        os.close(writer)
        said = os.read(reader, 1_000).decode()
        os.close(reader)
        assert "fork" in said
        assert await (await engine.start(plainly, x=3)).result() == 3


# What can be asked for


@pytest.mark.parametrize("timeout", [-1, 0, float("nan"), float("inf"), "3"])
async def test_a_timeout_is_a_time(sqlite_url: str, timeout: float):
    async with Engine(sqlite_url) as engine:
        with pytest.raises(ValueError, match="timeout"):
            await engine.start(plainly, run_id="run", x=1, timeout=timeout)
        assert await engine.list() == []


@pytest.mark.parametrize("run_id", ["", "half \ud800", "nul \x00"])
async def test_an_id_is_a_text(store_url: str, run_id: str):
    async with Engine(store_url) as engine:
        with pytest.raises(ValueError, match="run_id"):
            await engine.start(plainly, run_id=run_id, x=1)
        assert await (await engine.start(plainly, x=2)).result() == 2


async def test_a_reason_may_be_any_text(store_url: str):
    async with Engine(store_url) as engine:
        run = await engine.start(patiently, x=1)
        await run.cancel("half \ud800")
        ended = await run.wait()
        assert ended.status is RunStatus.CANCELLED
        assert ended.reason == "half \\ud800"


async def test_only_workflows_are_started_and_only_known_statuses_listed(sqlite_url: str):
    async with Engine(sqlite_url) as engine:
        with pytest.raises(TypeError, match="inside a @workflow"):
            await engine.start(plain, x=1)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"nonsense.*completed"):
            await engine.list(status="nonsense")


async def test_the_same_inputs_are_the_same_wherever_they_are_kept(sqlite_url: str):
    text = "z" * 3_000
    async with Engine(sqlite_url) as engine:
        assert await (await engine.start(measured, run_id="run", text=text)).result() == 3_000
    async with Engine(sqlite_url, settings=EngineSettings(inline_max_bytes=1_000)) as engine:
        assert await (await engine.start(measured, run_id="run", text=text)).result() == 3_000
        with pytest.raises(RunIdTaken, match="text"):
            await engine.start(measured, run_id="run", text="y" * 3_000)
