"""Child processes: how bodies cross over, how children die, and that none is left."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from perdure.dispatch.children import Child
from perdure.dispatch.failure import failure_of
from perdure.dispatch.local import CHILD, LocalDispatch
from perdure.dispatch.processes import ProcessPool
from perdure.errors import BodyCrashed, BodyNotFound, BodyRaised, EngineStopped, ValueTooLarge
from perdure.graph.declare import node
from tests.dispatch import bodies
from tests.dispatch.desk import Desk, decoded, executed_by, run, task_for, timed_out_when_heard

ADD = executed_by(bodies.add, "process")
WAIT = executed_by(bodies.waits, "process")


@contextlib.asynccontextmanager
async def pool_of(size: int, **options: Any) -> AsyncIterator[ProcessPool]:
    pool = ProcessPool(size, child=CHILD, **options)
    try:
        yield pool
    finally:
        await pool.close()


def ends_within(pid: int, seconds: float) -> bool:
    """Wait for the end of a process that need not be ours."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], seconds)[0])
    finally:
        os.close(handle)


@pytest.mark.slow
async def test_a_body_that_kills_its_process_at_once_runs_once(dispatch: LocalDispatch, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.write_bytes(bytes(1))
    for number in range(1, 21):
        await run(dispatch, bodies.opens_marks, path=str(marks))  # the next one meets a child that has proved itself
        with pytest.raises(BodyCrashed):
            await run(dispatch, bodies.marks_and_dies, path=str(marks))
        assert marks.read_bytes() == bytes([number])


async def test_a_process_is_used_again_and_runs_bodies_in_its_main_thread(dispatch: LocalDispatch) -> None:
    where = executed_by(bodies.where, "process")

    seen = {tuple(await run(dispatch, where)) for _ in range(5)}

    ((pid, _, is_main),) = seen
    assert pid != os.getpid()
    assert is_main


@pytest.mark.slow
async def test_a_thousand_trivial_bodies() -> None:
    async with pool_of(2) as pool, asyncio.TaskGroup() as group:
        calls = [group.create_task(pool.execute(task_for(ADD, Desk(), a=number))) for number in range(1_000)]

    assert [decoded(call.result()) for call in calls] == [number + 2 for number in range(1_000)]


@pytest.mark.parametrize(
    ("how", "exit_code", "killed_by", "words"),
    [
        ("segfault", None, signal.SIGSEGV, r"was ended by signal 11 \(SIGSEGV\)"),
        ("abort", None, signal.SIGABRT, r"was ended by signal 6 \(SIGABRT\)"),
        ("exit", 7, None, "ended with exit code 7"),
    ],
)
async def test_a_body_that_takes_its_process_down_fails_alone(
    dispatch: LocalDispatch, how: str, exit_code: int | None, killed_by: int | None, words: str
) -> None:
    with pytest.raises(BodyCrashed, match=f"node 'node-1' {words}") as caught:
        await run(dispatch, executed_by(bodies.crashes, "process"), how=how)

    assert (caught.value.exit_code, caught.value.signal) == (exit_code, killed_by)
    assert caught.value.error_class == "unknown"
    assert await run(dispatch, ADD, a=1) == 3


async def test_a_killed_process_is_taken_for_a_lack_of_memory(dispatch: LocalDispatch, desk: Desk) -> None:
    async with asyncio.TaskGroup() as group:
        call = group.create_task(_failure(dispatch.execute(task_for(WAIT, desk))))
        os.kill((await desk.heard("begun"))["pid"], signal.SIGKILL)

    error = call.result()
    assert isinstance(error, BodyCrashed)
    assert error.signal == signal.SIGKILL
    assert error.error_class == "resource"
    assert await run(dispatch, ADD, a=1) == 3


async def _failure(awaitable: Any) -> Exception | None:
    try:
        await awaitable
    except Exception as error:
        return error
    return None


async def test_a_child_that_died_while_idle_is_not_held_against_the_next_body(dispatch: LocalDispatch) -> None:
    where = executed_by(bodies.where, "process")
    pid, *_ = await run(dispatch, where)
    os.kill(pid, signal.SIGKILL)
    assert ends_within(pid, 5)

    assert await run(dispatch, ADD, a=1) == 3


async def test_a_crash_is_seen_though_a_forked_process_holds_the_line(dispatch: LocalDispatch) -> None:
    with pytest.raises(BodyCrashed, match="SIGSEGV"):
        await run(dispatch, executed_by(bodies.forks_and_crashes, "process"))


async def test_a_child_that_closes_its_line_is_ended(dispatch: LocalDispatch, desk: Desk) -> None:
    with pytest.raises(BodyCrashed):
        await run(dispatch, executed_by(bodies.hangs_up, "process"), desk)

    (pid,) = desk.published
    assert ends_within(pid, 0)


@pytest.mark.parametrize("waits", [bodies.waits, bodies.waits_async, bodies.spins])
async def test_a_cancelled_body_is_interrupted_and_can_clean_up(
    dispatch: LocalDispatch, desk: Desk, waits: Any
) -> None:
    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(executed_by(waits, "process"), desk)))
        await desk.heard("begun")
        call.cancel()

    assert call.cancelled()
    assert desk.messages == ["begun", "ended"]
    assert await run(dispatch, ADD, a=1) == 3


async def test_a_body_that_will_not_stop_is_killed_after_the_grace_period(dispatch: LocalDispatch, desk: Desk) -> None:
    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(executed_by(bodies.will_not_stop, "process"), desk)))
        pid = (await desk.heard("begun"))["pid"]
        call.cancel()

    assert call.cancelled()
    assert ends_within(pid, 0)
    assert await run(dispatch, ADD, a=1) == 3


async def test_a_time_out_reaches_a_body_in_a_process(dispatch: LocalDispatch, desk: Desk) -> None:
    with pytest.raises(TimeoutError):
        await timed_out_when_heard("begun", dispatch, task_for(WAIT, desk), desk)

    assert desk.messages == ["begun", "ended"]


async def test_what_a_body_has_started_ends_with_its_process(dispatch: LocalDispatch, desk: Desk) -> None:
    async with asyncio.TaskGroup() as group:
        call = group.create_task(
            _failure(dispatch.execute(task_for(executed_by(bodies.waits_with_a_helper, "process"), desk)))
        )
        begun = await desk.heard("begun")
        os.kill(begun["pid"], signal.SIGKILL)

    assert isinstance(call.result(), BodyCrashed)
    assert ends_within(begun["helper"], 5)


async def test_signals_of_the_terminal_and_of_service_managers_do_not_stop_a_body(
    dispatch: LocalDispatch, desk: Desk
) -> None:
    async with asyncio.TaskGroup() as group:
        call = group.create_task(dispatch.execute(task_for(WAIT, desk)))
        pid = (await desk.heard("begun"))["pid"]
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
        assert os.getpgid(pid) != os.getpgid(0)
        assert not ends_within(pid, 0.1)
        assert not call.done()
        call.cancel()


async def test_closing_ends_every_process(desk: Desk) -> None:
    dispatch = LocalDispatch(processes=2)
    where = executed_by(bodies.where, "process")
    pid, *_ = await run(dispatch, where)
    async with asyncio.TaskGroup() as group:
        call = group.create_task(_failure(dispatch.execute(task_for(WAIT, desk))))
        busy = (await desk.heard("begun"))["pid"]
        await dispatch.close()

    assert isinstance(call.result(), EngineStopped)
    assert ends_within(pid, 0)
    assert ends_within(busy, 0)
    with pytest.raises(EngineStopped):
        await run(dispatch, ADD, a=1)


async def test_a_child_ends_when_the_engine_hangs_up() -> None:
    child = Child(CHILD, 1 << 20)
    await child.start()

    await child.line.close()

    assert await child.exit_within(5) is not None


async def test_a_child_that_cannot_start_says_so(desk: Desk) -> None:
    pool = ProcessPool(1, child="tests.dispatch.not_there")

    with pytest.raises(BodyCrashed, match="could not be started: it ended with exit code 1"):
        await pool.execute(task_for(ADD, desk, a=1))
    await pool.close()


PARENT = """
    import asyncio, sys
    sys.path[:0] = {path!r}
    from tests.dispatch import bodies
    from tests.dispatch.desk import Desk, executed_by, task_for
    from perdure.dispatch.local import LocalDispatch

    async def main() -> None:
        desk = Desk()
        async with asyncio.TaskGroup() as group:
            group.create_task(LocalDispatch().execute(task_for(executed_by(bodies.{body}, "process"), desk)))
            print((await desk.heard("begun"))["pid"], flush=True)

    asyncio.run(main())
"""


@pytest.mark.parametrize("body", ["waits", "will_not_stop", "waits_async"])
def test_children_die_with_a_killed_engine(body: str) -> None:
    program = textwrap.dedent(PARENT).format(path=sys.path, body=body)
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as engine:
        assert engine.stdout is not None
        pid = int(engine.stdout.readline())
        began = time.monotonic()
        engine.kill()

    assert ends_within(pid, 2)
    assert time.monotonic() - began < 2


SCRIPT = """
    import asyncio, sys
    from dataclasses import dataclass
    sys.path[1:1] = {path!r}
    from perdure.graph.declare import node
    from tests.dispatch.desk import Desk, decoded, run, task_for
    from perdure.dispatch.local import LocalDispatch
    from perdure.dispatch.failure import failure_of

    @dataclass
    class Size:
        width: int

    class Unlucky(Exception):
        pass

    @node(executor="process")
    def doubled(size: Size) -> Size:
        print("body", __name__)
        return Size(2 * size.width)

    @node(executor="process")
    def fails() -> None:
        raise Unlucky("as always")

    async def main() -> None:
        dispatch = LocalDispatch()
        result = await dispatch.execute(task_for(doubled, Desk(), size=Size(4)))
        print("result", decoded(result, Size))
        try:
            await run(dispatch, fails)
        except Exception as error:
            print("failure", failure_of(error).is_a(Unlucky), error)
        await dispatch.close()

    {guard}
        print("main")
        asyncio.run(main())
"""


def _script(tmp_path: Path, name: str, guard: str) -> subprocess.CompletedProcess[str]:
    file = tmp_path / name
    file.write_text(textwrap.dedent(SCRIPT).format(path=sys.path, guard=guard))
    return subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("name", ["my_flow.py", "my flow.py", "test.py"])
def test_node_types_of_a_script_run_in_processes(tmp_path: Path, name: str) -> None:
    done = _script(tmp_path, name, 'if __name__ == "__main__":')

    stem = name.removesuffix(".py")
    assert done.stdout.splitlines() == [
        "main",
        "result Size(width=8)",
        f"failure True {stem}.Unlucky: as always",
    ]
    assert f"body {stem}" in done.stderr


def test_a_script_that_would_start_itself_again_is_told_the_remedy(tmp_path: Path) -> None:
    done = _script(tmp_path, "unguarded.py", "if True:")

    assert done.returncode == 1
    assert done.stdout.splitlines() == ["main"]
    assert "starts an engine while it is imported" in done.stderr
    assert "if __name__ == '__main__':" in done.stderr


async def test_a_node_type_that_no_other_process_can_find_is_refused(dispatch: LocalDispatch) -> None:
    @node
    def hidden() -> None: ...

    with pytest.raises(BodyNotFound, match="inside a function"):
        await run(dispatch, executed_by(hidden, "process"))


async def test_a_node_type_typed_in_is_refused() -> None:
    program = """
        import asyncio
        from perdure.graph.declare import node
        from tests.dispatch.desk import run
        from perdure.dispatch.local import LocalDispatch
        @node(executor="process")
        def typed() -> None: ...
        async def main() -> None:
            await run(LocalDispatch(), typed)
        asyncio.run(main())
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )

    assert "it was typed in, and is in no file" in done.stderr


async def test_what_cannot_be_stored_fails_in_the_child_and_names_the_node(dispatch: LocalDispatch) -> None:
    with pytest.raises(BodyRaised, match="node 'node-1'") as caught:
        await run(dispatch, executed_by(bodies.nothing_to_keep, "process"))

    assert failure_of(caught.value).is_a("ValueNotStorable")


async def test_a_secret_cannot_be_given_away(dispatch: LocalDispatch, desk: Desk) -> None:
    with pytest.raises(BodyRaised, match="it is a secret") as caught:
        await run(dispatch, executed_by(bodies.gives_secret_away, "process"), desk)

    assert "hünter2" not in failure_of(caught.value).traceback


async def test_values_beyond_the_limit_are_refused_on_either_side() -> None:
    echo = executed_by(bodies.echo, "process")
    async with pool_of(1, max_frame_bytes=1_000) as pool:
        with pytest.raises(ValueTooLarge, match="at most 1,000 may travel"):
            await pool.execute(task_for(echo, Desk(), value="x" * 1_000))
        with pytest.raises(BodyRaised, match="at most 1,000 may travel"):
            await pool.execute(task_for(executed_by(bodies.many, "process"), Desk(), count=1_000))

        assert decoded(await pool.execute(task_for(echo, Desk(), value="x" * 900))) == "x" * 900


@pytest.mark.slow
async def test_a_hundred_megabytes_go_there_and_back(dispatch: LocalDispatch) -> None:
    value = "x" * 100_000_000

    assert await run(dispatch, executed_by(bodies.echo, "process"), value=value) == value
