"""Real processes for tests: started, spoken to, killed, stopped and woken, and none left when the test ends."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import json
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import msgspec

from perdure import EngineSettings
from tests.torture.programs.served import Options

ROOT = Path(__file__).resolve().parents[2]
ANSWER_SECONDS = 30.0
START_SECONDS = 30.0

DEFAULTS = EngineSettings()

T = TypeVar("T")


class ProcessGone(Exception):
    """The process ended before it answered."""


class Child:
    """A program of `tests.torture.programs` in a process of its own."""

    def __init__(self, process: asyncio.subprocess.Process, errors: Path, name: str) -> None:
        self.name = name
        self.pid = process.pid
        self.engine_id = ""
        """Under which name the engine in it joined first, once it is ready."""
        self._process = process
        self._errors = errors
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._said: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read())

    @property
    def is_alive(self) -> bool:
        return self._process.returncode is None

    @property
    def is_stopped(self) -> bool:
        """Whether the kernel has stopped it."""
        return self._kernel_says("stat").rpartition(")")[2].split()[0] == "T"

    def catches(self, which: signal.Signals) -> bool:
        """Whether the process has its own way of taking this signal, by now."""
        lines = self._kernel_says("status").splitlines()
        caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
        return bool(int(caught, 16) >> (which - 1) & 1)

    def log(self) -> str:
        """Return what it has written to stderr."""
        return self._errors.read_text(encoding="utf-8", errors="replace")

    def kill(self, how: signal.Signals = signal.SIGKILL) -> bool:
        """Send a signal. False if the process has ended already."""
        if not self.is_alive:
            return False
        try:
            os.kill(self.pid, how)
        except ProcessLookupError:  # it has ended, and the loop has not heard of it yet
            return False
        return True

    async def ended(self, seconds: float = ANSWER_SECONDS) -> int:
        """Wait for its end and return its exit code: a negative one is the signal that ended it."""
        async with deadline(seconds, lambda: f"{self.name} does not end: {self.log()[-2_000:]}"):
            code = await self._process.wait()
            await self._reading
            return code

    async def gone(self) -> None:
        """Wait until it has nothing more to say, which is when it ends."""
        await asyncio.wait((self._reading,))

    async def ready(self) -> None:
        """Wait until the engine in it is at work. Raises ProcessGone if the process ends before."""
        self.engine_id = (await self.heard("ready"))["engine_id"]

    async def heard(self, said: str, seconds: float = START_SECONDS) -> dict[str, Any]:
        """Return the next thing it says by itself, which must be this."""
        async with deadline(seconds, lambda: f"{self.name} does not say {said!r}: {self.log()[-2_000:]}"):
            message = await self._said.get()
        if message is None:
            raise self._gone()
        assert message["said"] == said, message
        return message

    async def ask(self, do: str, seconds: float = ANSWER_SECONDS, **about: Any) -> dict[str, Any]:
        """Have something done and return the answer. Raises ProcessGone if the process ends before."""
        if self._reading.done():
            raise self._gone()
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        self.tell(do, id=number, **about)
        try:
            async with deadline(seconds, lambda: f"{self.name} does not answer {do} {about}: {self.log()[-2_000:]}"):
                return await answer
        finally:
            del self._answers[number]

    def tell(self, do: str, **about: Any) -> None:
        """Have something done without waiting for it."""
        assert self._process.stdin is not None
        if not self._process.stdin.is_closing():
            self._process.stdin.write(json.dumps({"do": do, **about}).encode() + b"\n")

    def _kernel_says(self, name: str) -> str:
        try:
            return Path(f"/proc/{self.pid}/{name}").read_text(encoding="utf-8", errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            raise self._gone() from None

    def _gone(self) -> ProcessGone:
        return ProcessGone(f"{self.name} has ended ({self._process.returncode}): {self.log()[-4_000:]}")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            if (message := _message(line)) is None:
                continue
            answer = self._answers.get(message.get("id", 0))
            if answer is None:
                self._said.put_nowait(message)
            elif not answer.done():
                answer.set_result(message)
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(self._gone())
        self._said.put_nowait(None)


def _message(line: bytes) -> dict[str, Any] | None:
    """Return what a line says to the test; programs may print other things as well."""
    try:
        message: Any = json.loads(line)
    except ValueError:
        return None
    return cast("dict[str, Any]", message) if isinstance(message, dict) and "said" in message else None


class Children:
    """The child processes of one test: all of them are gone when the block is left, however it is left."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        self._environment = {**os.environ, "PYTHONPATH": path, **environment}
        self._children: list[Child] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for child in self._children:
            child.kill()
        for child in self._children:
            await child.ended()

    @property
    def pids(self) -> dict[str, int]:
        """In which process each engine joined, by the engine's name."""
        return {child.engine_id: child.pid for child in self._children if child.engine_id}

    async def start(self, program: str, *arguments: str) -> Child:
        """Start a program."""
        name = f"{program}-{len(self._children)}"
        errors = self._folder / f"{name}.log"
        with errors.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", f"tests.torture.programs.{program}", *arguments),
                cwd=self._folder,
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=file,
            )
        child = Child(process, errors, name)
        self._children.append(child)
        return child

    async def start_engine(
        self, store_url: str, settings: EngineSettings = DEFAULTS, *, pausable: bool = False, recover: bool = True
    ) -> Child:
        """Start an engine that does what it is told, and return when it is at work."""
        child = await self.launch_engine(store_url, settings, pausable=pausable, recover=recover)
        await child.ready()
        return child

    async def launch_engine(
        self, store_url: str, settings: EngineSettings = DEFAULTS, *, pausable: bool = False, recover: bool = True
    ) -> Child:
        """Start an engine without waiting until it is at work."""
        options = Options(store=store_url, settings=settings, pausable=pausable, recover=recover)
        return await self.start("served", msgspec.json.encode(options).decode())


class deadline:  # noqa: N801 -- reads as a statement: `async with deadline(5, …)`
    """Fail with a message if the block takes longer."""

    def __init__(self, seconds: float, complaint: Callable[[], str]) -> None:
        self._seconds = seconds
        self._complaint = complaint
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *exception: Any) -> None:
        try:
            await self._timeout.__aexit__(*exception)
        except TimeoutError:
            if self._timeout.expired():
                raise AssertionError(f"{self._complaint()} (after {self._seconds:g} s)") from None
            raise


async def until(
    holds: Callable[[], T | Awaitable[T | None] | None], seconds: float, complaint: str | Callable[[], str]
) -> T:
    """Ask again and again until the answer is true, and return it. Fails with the complaint when the time is up."""
    end = time.monotonic() + seconds
    while True:
        answer = holds()
        found = cast("T | None", await answer if inspect.isawaitable(answer) else answer)
        if found:
            return found
        if time.monotonic() > end:
            text = complaint if isinstance(complaint, str) else complaint()
            raise AssertionError(f"{text} (after {seconds:g} s)")
        await asyncio.sleep(0.005)
