"""`perdure demo`: the product in a minute. A real workflow, a real SIGKILL, a real second process.

Everything that is shown is found out: which nodes were kept and which ran again is read from a file that the nodes
themselves write, and from the log of the run.
"""

from __future__ import annotations

import asyncio
import shlex
import shutil
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

import click
import msgspec

from perdure.cli.exits import Exit
from perdure.cli.options import awaited, json_option, print_json
from perdure.cli.plainly import say
from perdure.cli.results import result
from perdure.cli.show import chart
from perdure.cli.terminal import Paper, paper
from perdure.cli.words import counted
from perdure.clock import SystemClock
from perdure.engine.inspect import events_of, load_graph, load_run, verify_run
from perdure.errors import ProgramError
from perdure.ids import NodeId, RunId
from perdure.journal.events import Encoded
from perdure.journal.states import NodeStatus, RunStatus
from perdure.journal.verify import Violation
from perdure.store.base import Store
from perdure.store.opening import is_there, open_store
from perdure.store.shapes import StoredRun

FLOW = Path(__file__).with_name("demo_flow.py")
FLOW_NAME = "library.py"
DEMO, UNDISTURBED = RunId("demo"), RunId("undisturbed")
LEDGER = "ledger.txt"
LOOK_SECONDS = 0.05
MIDDLE_SECONDS = 0.2
"""How long to wait, once half of the nodes are done, so that others are in the middle of their work."""
INDENT = "   "


class Killed(msgspec.Struct, frozen=True, kw_only=True):
    """What the process left behind when it was killed, by the log of the run."""

    pid: int
    completed: tuple[NodeId, ...]
    running: tuple[NodeId, ...]


class Findings(msgspec.Struct, frozen=True, kw_only=True):
    """What the demo has found out."""

    killed: Killed
    status: RunStatus
    kept: tuple[NodeId, ...]
    """Completed before the kill, and not run again."""
    repeated: tuple[NodeId, ...]
    """Completed before the kill, and run again: there must be none."""
    interrupted: tuple[NodeId, ...]
    """In the middle of their work when the process was killed, and run again for that reason."""
    later: tuple[NodeId, ...]
    """Run by the second process alone."""
    outputs: dict[str, Encoded]
    equals_undisturbed: bool
    violations: tuple[Violation, ...]
    seconds: float

    @property
    def is_proof(self) -> bool:
        """Whether there was a crash, and it was survived as promised."""
        is_whole = self.status is RunStatus.COMPLETED and self.equals_undisturbed and not self.violations
        return is_whole and not self.repeated and bool(self.kept) and bool(self.killed.running)


@click.command("demo")
@click.option("--folder", metavar="FOLDER", help="Work in this folder and keep it, to look around afterwards.")
@json_option
@awaited
async def demo_command(folder: str | None, as_json: bool) -> int:
    """Watch a workflow survive a crash: it is killed half-way and resumed in another process.

    \b
      perdure demo
      perdure demo --folder tour
    """
    with _folder(folder) as place:
        demo = Demo(place, paper(), is_quiet=as_json)
        findings = await demo.play()
    if as_json:
        print_json(findings)
    else:
        demo.farewell(findings, is_kept=folder is not None)
    return Exit.DONE if findings.is_proof else Exit.FAILED


class Demo:
    """Plays the story in a folder and tells it, unless it is to be quiet."""

    def __init__(self, folder: Path, sheet: Paper, *, is_quiet: bool) -> None:
        self._folder = folder
        self._sheet = sheet
        self._pen = sheet.pen
        self._is_quiet = is_quiet
        self._clock = SystemClock()
        self._step = 0

    async def play(self) -> Findings:
        """Run, kill, resume, compare, verify."""
        began = self._clock.monotonic()
        if not self._is_quiet:
            say("A workflow is killed half-way, and goes on as if nothing had happened.")
        # Beside the story, in a store of its own: it tells what the result should be.
        undisturbed = await self._spawn(UNDISTURBED, *_run(UNDISTURBED, "undisturbed.txt"), stdout=DEVNULL)
        self._tell_step("Run a workflow in a process of its own")
        killed = await self._run_and_kill()
        self._tell_step("Go on in another process")
        await self._resume()
        await _succeeded(undisturbed)
        async with self._opened(UNDISTURBED) as store:
            expected = (await load_run(store, UNDISTURBED)).run.outputs
        async with self._opened(DEMO) as store:
            findings = await self._find_out(store, killed, expected, began)
            await self._tell_findings(store, findings)
        return findings

    def farewell(self, findings: Findings, *, is_kept: bool) -> None:
        """Say whether it went well, and what to try next."""
        pen = self._pen
        say("")
        if findings.is_proof:
            say(pen.good(f"Nothing was lost, and nothing that was done was done again ({findings.seconds:.1f} s)."))
        else:
            say(pen.bad("This is not what perdure promises. Please report it, with everything above."))
        say("")
        say(pen.strong("Try next"))
        if is_kept:
            say(f"{INDENT}cd {shlex.quote(str(self._folder))} && {_program(moved=True)} show {DEMO}")
        else:
            say(f"{INDENT}{_program()} demo --folder tour   {pen.faint('the same, and the files are kept')}")
        say(f"{INDENT}{_program()} run flow.py          {pen.faint('your own workflow: kill it, then resume it')}")

    # What happens

    async def _run_and_kill(self) -> Killed:
        process = await self._start(*_run(DEMO, LEDGER))
        async with asyncio.TaskGroup() as group:
            group.create_task(self._relay(process))
            group.create_task(self._kill_half_way(process))
        if process.returncode != -signal.SIGKILL:
            raise ProgramError(f"The workflow of the demo ended by itself, with exit code {process.returncode}.")
        async with self._opened(DEMO) as store:
            stored = await load_run(store, DEMO)
        running = _in_status(stored, NodeStatus.RUNNING)
        killed = Killed(pid=process.pid, completed=_in_status(stored, NodeStatus.COMPLETED), running=running)
        state = f"{counted(len(killed.completed), 'node')} completed, {len(running)} in the middle of their work"
        self._tell(f"{self._pen.bad(f'✗ kill -9 {process.pid}')}  {state}")
        return killed

    async def _kill_half_way(self, process: Process) -> None:
        """Kill the process when, by the log, half of the nodes are completed and others run."""
        while process.returncode is None and not is_there(self._url(DEMO)):
            await self._clock.sleep(LOOK_SECONDS)
        async with self._opened(DEMO) as store:
            while process.returncode is None and not await _is_half_done(store):
                await self._clock.sleep(LOOK_SECONDS)
        await self._clock.sleep(MIDDLE_SECONDS)
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGKILL)
        await process.wait()

    async def _resume(self) -> None:
        process = await self._start("resume", DEMO)
        await self._relay(process)
        await _succeeded(process)

    async def _find_out(
        self, store: Store, killed: Killed, expected: dict[str, Encoded] | None, began: float
    ) -> Findings:
        stored = await load_run(store, DEMO)
        times = Counter(line.split()[0] for line in (self._folder / LEDGER).read_text("utf-8").splitlines())
        # An attempt that failed and was tried again has run as well, and rightly.
        allowed = {state.node_id: 1 + state.failures for state in stored.nodes}
        again = {node_id for node_id in allowed if times[node_id] > allowed[node_id]}
        return Findings(
            killed=killed,
            status=stored.run.status,
            kept=tuple(node_id for node_id in killed.completed if node_id not in again),
            repeated=tuple(node_id for node_id in killed.completed if node_id in again),
            interrupted=tuple(node_id for node_id in killed.running if node_id in again),
            later=tuple(n for n in _in_status(stored, NodeStatus.COMPLETED) if n not in {*killed.completed, *again}),
            outputs=stored.run.outputs or {},
            equals_undisturbed=expected is not None and stored.run.outputs == expected,
            violations=tuple(await verify_run(store, DEMO)),
            seconds=self._clock.monotonic() - began,
        )

    async def _start(self, *arguments: str) -> Process:
        """Start a perdure of its own, and show the command as a person would type it."""
        self._tell(self._pen.faint(f"$ perdure {' '.join(arguments)}"))
        return await self._spawn(DEMO, *arguments, stdout=PIPE)

    async def _spawn(self, store: RunId, *arguments: str, stdout: int) -> Process:
        command = (sys.executable, "-P", "-m", "perdure", *arguments, "--store", f"sqlite:///{_file_of(store)}")
        return await asyncio.create_subprocess_exec(*command, cwd=self._folder, stdin=DEVNULL, stdout=stdout)

    def _url(self, name: RunId) -> str:
        return f"sqlite:///{self._folder / _file_of(name)}"

    @asynccontextmanager
    async def _opened(self, name: RunId) -> AsyncGenerator[Store]:
        store = await open_store(self._url(name))
        try:
            yield store
        finally:
            await store.close()

    # What is told

    async def _tell_findings(self, store: Store, findings: Findings) -> None:
        pen = self._pen
        self._tell_step("Compare what the nodes themselves wrote down with the log")
        self._tell(f"{pen.good('kept       ')} {_listed(findings.kept)}")
        self._tell(f"{pen.warning('run again  ')} {_listed(findings.interrupted)} {pen.faint('(cut off by the kill)')}")
        self._tell(f"{pen.moving('run later  ')} {_listed(findings.later)}")
        self._tell(f"{pen.bad('done twice ')} {_listed(findings.repeated)}")
        equal = pen.good("as without the kill") if findings.equals_undisturbed else pen.bad("not as without the kill")
        self._tell(f"result      {' '.join(result(findings.outputs))} ({equal})")
        self._tell_step("Look at the whole run")
        self._tell(pen.faint(f"$ perdure show {DEMO}"))
        for line in await self._chart(store):
            self._tell(line)
        self._tell_step("Prove that its log and its tables agree")
        self._tell(pen.faint(f"$ perdure verify {DEMO}"))
        for violation in findings.violations:
            self._tell(pen.bad(f"✗ {violation.invariant} {violation.problem}"))
        if not findings.violations:
            self._tell(f"{pen.good('✓')} all invariants hold")

    async def _chart(self, store: Store) -> list[str]:
        stored = await load_run(store, DEMO)
        log = [entry async for entry in events_of(store, DEMO)]
        inset = msgspec.structs.replace(self._sheet, width=self._sheet.width - len(INDENT))
        return list(chart(stored, await load_graph(store, stored.run), log, inset, now=None))

    async def _relay(self, process: Process) -> None:
        """Pass on what the process prints, while it lives."""
        assert process.stdout is not None
        async for line in process.stdout:
            self._tell(self._pen.faint(line.decode(errors="replace").rstrip()))

    def _tell_step(self, title: str) -> None:
        self._step += 1
        if not self._is_quiet:
            say("")
            say(self._pen.strong(f"{self._step}  {title}"))

    def _tell(self, text: str) -> None:
        if not self._is_quiet:
            say(f"{INDENT}{text}")


@contextmanager
def _folder(chosen: str | None) -> Generator[Path]:
    """Give a folder with the workflow in it: the chosen one, which must be empty, or one that is removed in the end."""
    if chosen is None:
        with tempfile.TemporaryDirectory(prefix="perdure-demo-", ignore_cleanup_errors=True) as temporary:
            yield _with_flow(Path(temporary))
        return
    folder = Path(chosen).absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ProgramError(f"{folder} is not an empty folder. Choose one that is empty or does not exist.")
    yield _with_flow(folder)


def _with_flow(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(FLOW, folder / FLOW_NAME)
    except OSError as error:
        raise ProgramError(
            f"The demo cannot write to {folder} ({error.strerror}). Choose another folder: --folder FOLDER."
        ) from error
    return folder


def _run(run_id: RunId, ledger: str) -> tuple[str, ...]:
    return ("run", FLOW_NAME, "--run-id", run_id, "--input", f"ledger={ledger}")


def _file_of(name: RunId) -> str:
    """Return the store of a run. That of the story is the usual one, so that commands need not name it."""
    return "perdure.db" if name == DEMO else f"{name}.db"


def _program(*, moved: bool = False) -> str:
    """Return how perdure is called here, or by who has `moved` to another folder, for a person to type."""
    beside = Path(sys.executable).with_name("perdure")
    if shutil.which("perdure"):
        return "perdure"
    if beside.is_file():
        is_near = beside.is_relative_to(Path.cwd()) and not moved
        return shlex.quote(str(beside.relative_to(Path.cwd()) if is_near else beside))
    return shlex.join([sys.executable, "-m", "perdure"])


async def _succeeded(process: Process) -> None:
    if await process.wait() != 0:
        raise ProgramError(f"A process of the demo failed, with exit code {process.returncode}. It has said why above.")


async def _is_half_done(store: Store) -> bool:
    stored = await store.load_run(DEMO)
    graph = None if stored is None else await load_graph(store, stored.run)
    if stored is None or graph is None:
        return False
    is_busy = bool(_in_status(stored, NodeStatus.RUNNING))
    return is_busy and len(_in_status(stored, NodeStatus.COMPLETED)) * 2 >= len(graph.nodes)


def _in_status(stored: StoredRun, status: NodeStatus) -> tuple[NodeId, ...]:
    return tuple(sorted(state.node_id for state in stored.nodes if state.status is status))


def _listed(nodes: Sequence[NodeId]) -> str:
    return ", ".join(nodes) or "nothing"
