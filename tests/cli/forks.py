"""Processes of the command line that need not import anything: most of what a command costs otherwise.

One process is started for all commands. It has everything imported and nothing open, and forks for each command, which then has
arguments, a folder, an environment, pipes and an end of its own, as if Python had been started for it.

    with Forks() as forks:
        forks.run(["list", "--json"], cwd=folder, env=environment, stdin="")

Executed as a program, this file is that process. It imports nothing of the tests.
"""

from __future__ import annotations

import atexit
import json
import os
import pkgutil
import runpy
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, Self

MOST_BYTES = 1 << 20
"""Of a request: arguments and an environment."""
SECONDS = 60


class Forks:
    """Starts commands, one after the other."""

    def __enter__(self) -> Self:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()
        self._process.communicate(timeout=SECONDS)

    def _start(self) -> None:
        self._command: int | None = None
        """The number of the process of the command, until it has ended."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                # As those of commands are: Python looks what they are when it starts.
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )

    def run(
        self, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, as `subprocess.run` does."""
        try:
            return self._run(arguments, cwd=cwd, env=env, stdin=stdin)
        except BaseException:  # cut short, by a time limit say: answers on their way are not for the next one
            if self._command is not None:
                os.kill(self._command, signal.SIGKILL)
            self._process.kill()
            self.__exit__()
            self._start()
            raise

    def _run(
        self, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str], stdin: str
    ) -> subprocess.CompletedProcess[str]:
        pipes = [os.pipe(), os.pipe(), os.pipe()]
        (their_input, our_input), (our_output, their_output), (our_errors, their_errors) = pipes
        request = json.dumps({"arguments": list(arguments), "cwd": str(cwd), "env": dict(env)}).encode()
        theirs = [their_input, their_output, their_errors]
        socket.send_fds(self._socket, [request], theirs)
        for end in theirs:
            os.close(end)
        output, errors = _Reading(our_output), _Reading(our_errors)
        _write(our_input, stdin)
        self._command = int(self._socket.recv(MOST_BYTES))
        self._socket.settimeout(SECONDS)
        try:
            code = int(self._socket.recv(MOST_BYTES))
        except TimeoutError:
            raise subprocess.TimeoutExpired(list(arguments), SECONDS) from None
        self._socket.settimeout(None)
        self._command = None
        return subprocess.CompletedProcess(list(arguments), code, output.text(), errors.text())


class _Reading:
    """Reads all that comes out of a pipe."""

    def __init__(self, end: int) -> None:
        self._end = end
        self._found = b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def text(self) -> str:
        """Return it when everybody has left who could write something."""
        self._thread.join(SECONDS)
        return self._found.decode()

    def _read(self) -> None:
        with open(self._end, "rb") as pipe:
            self._found = pipe.read()


def _write(end: int, text: str) -> None:
    try:
        with open(end, "w") as pipe:
            pipe.write(text)
    except BrokenPipeError:
        pass  # a command need not read what it is given


# The process that forks


def serve(requests: socket.socket) -> None:
    """Fork for each request, and answer with the number of the process and with how it has ended."""
    _import_everything()
    while True:
        request, ends, _, _ = socket.recv_fds(requests, MOST_BYTES, 3)
        if not request:
            return
        child = os.fork()
        if not child:
            requests.close()
            _be_command(json.loads(request), ends)
        for end in ends:
            os.close(end)
        requests.send(str(child).encode())
        _, status = os.waitpid(child, 0)
        requests.send(str(os.waitstatus_to_exitcode(status)).encode())


def _import_everything() -> None:
    import perdure
    import perdure.cli

    for name in perdure.__all__:
        getattr(perdure, name)
    for module in pkgutil.iter_modules(perdure.cli.__path__, "perdure.cli."):
        import_module(module.name)
    for name in ("perdure.store.sqlite.store", "perdure.dispatch.local", "rich.console"):
        import_module(name)


def _be_command(request: dict[str, Any], ends: Sequence[int]) -> NoReturn:
    """Do what `python -P -m perdure` does in a process of its own, also at the end."""
    for number, end in enumerate(ends):
        os.dup2(end, number)
        os.close(end)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = ["perdure", *request["arguments"]]
    code = _code_of_main()
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        code = 120  # as Python has it
    os._exit(code)


def _code_of_main() -> int:
    try:
        runpy.run_module("perdure", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return end.code or 0
        print(end.code, file=sys.stderr)
        return 1
    except BaseException:  # whatever it is, Python would print it
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
