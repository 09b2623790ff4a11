"""A child process as the engine sees it: an interpreter of its own, and the line to it.

It is started by running `sys.executable` anew, never by forking the engine, and leads a process group of its own: signals
of the terminal do not reach it, and what it starts can be ended with it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress

import msgspec

from perdure.dispatch.child import Birth
from perdure.dispatch.failure import storable
from perdure.dispatch.frames import READ_AHEAD_BYTES, Close, Line, LineBroken, Ready

START_SECONDS = 60.0
HUNG_UP_SECONDS = 1.0
"""How long a child that has closed its line may take to end."""
KILLED_SECONDS = 10.0
"""How long the kernel may take to end a process that was killed. One that waits for a device may take for ever."""
_STDERR = 2

# -P: until its path is set, the child must not import what happens to lie in the current folder.
_BIRTH = (
    "import json, sys; birth = json.loads(sys.argv[1]); sys.path[:] = birth['path']; "
    "import importlib; importlib.import_module(birth['module']).main(birth)"
)


class NotStarted(Exception):
    """A child was not ready to take work."""


class Child:
    """A child process and the line to it."""

    def __init__(self, module: str, max_frame_bytes: int) -> None:
        self._module = module
        self._max_frame_bytes = max_frame_bytes
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._loop = asyncio.get_running_loop()
        self._exit: asyncio.Future[int] = self._loop.create_future()
        self.line: Line
        self.is_fit = True
        """Whether it can be given another body."""
        self.is_seasoned = False
        """Whether it has run a body before."""

    @property
    def is_alive(self) -> bool:
        return self._process is not None and not self._exit.done() and self._process.returncode is None

    async def start(self) -> None:
        """Start the process and wait until it is ready. Raises NotStarted."""
        ours, theirs = socket.socketpair()
        self._socket = ours
        with theirs:
            self._process = self._spawn(theirs)
        threading.Thread(target=self._reap, args=(self._process,), name="perdure reaper", daemon=True).start()
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=READ_AHEAD_BYTES)
        self.line = Line(reader, writer, max_frame_bytes=self._max_frame_bytes)
        try:
            async with asyncio.timeout(START_SECONDS):
                frame = await self.line.receive_from_child()
        except TimeoutError:
            raise NotStarted(f"was not ready after {START_SECONDS:g} s") from None
        except LineBroken as problem:
            raise NotStarted(str(problem)) from problem
        if frame is None or not isinstance(frame[0], Ready):
            raise NotStarted(how_it_ended(await self.exit_within(HUNG_UP_SECONDS)))

    async def exit_within(self, seconds: float) -> int | None:
        """Return the exit code once the process has ended, or None if it has not in that time."""
        await asyncio.wait((self._exit,), timeout=seconds)
        return self._exit.result() if self._exit.done() else None

    def kill(self) -> None:
        """End the process and everything it has started."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def close(self, seconds: float) -> None:
        """End the process, which may take so long to do it by itself, and hang up."""
        if self._process is None:
            if self._socket is not None:
                self._socket.close()
            return
        has_line = hasattr(self, "line")
        try:
            if seconds and has_line:
                self.line.send(Close())
                await self.exit_within(seconds)
        finally:
            self.kill()
            if has_line:
                await self.line.close()
            await self.exit_within(KILLED_SECONDS)

    def _spawn(self, line: socket.socket) -> subprocess.Popen[bytes]:
        birth = Birth(
            module=self._module,
            path=current_path(),
            line=line.fileno(),
            parent=os.getpid(),
            max_frame_bytes=self._max_frame_bytes,
        )
        # From this thread, which lives as long as the loop: Linux kills the child when the thread that started it ends.
        return subprocess.Popen(  # noqa: S603  # our own interpreter, our own code
            [sys.executable, "-P", "-c", _BIRTH, msgspec.json.encode(birth).decode()],
            stdin=subprocess.DEVNULL,
            stdout=_stderr(),
            pass_fds=(line.fileno(),),
            start_new_session=True,
        )

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        """What the child's own thread does: wait for its end."""
        code = process.wait()
        # What it has started and left behind.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(RuntimeError):  # the loop has been closed
            self._loop.call_soon_threadsafe(self._exited, code)

    def _exited(self, code: int) -> None:
        self._exit.set_result(code)
        # A process that it has forked may hold the line open: nothing more will come, whoever holds it.
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RD)


def current_path() -> tuple[str, ...]:
    """Return where this process looks for modules, as another process can use it. Folders without a text are left out."""
    return tuple(os.path.abspath(entry or os.curdir) for entry in sys.path if storable(entry) == entry)


def how_it_ended(exit_code: int | None) -> str:
    """Say how a process has ended, for the end of a sentence that begins with it."""
    if exit_code is None:
        return "went on without a line to the engine"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        name = signal.Signals(-exit_code).name
    except ValueError:
        name = "a signal without a name"
    return f"was ended by signal {-exit_code} ({name})"


def _stderr() -> int:
    """Return where a child's output goes: stderr, or nowhere if there is none."""
    try:
        os.fstat(_STDERR)
    except OSError:
        return subprocess.DEVNULL
    return _STDERR
