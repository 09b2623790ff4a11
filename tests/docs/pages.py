"""The pages of the documentation as programs: the blocks they hold, and what happens when these are run.

A page is run in a folder of its own, its blocks from top to bottom, each in a fresh process:

- A block that begins with a comment that is a file name (`# flow.py`) is written to that file; where the language has no
  comments, `<!-- file: graph.json -->` stands above the block.
- A Python block is run. A line `print(…)  # text` says what it prints; `# raises Name` at the end of a line, how it ends. A
  file that says neither is imported, because it may be a program for a command further down.
- In a `console` block, lines that begin with `$ ` are commands and the lines below them what they print. Times, ids and
  bars are masked before the two are compared, and a line `…` stands for any number of lines. A command without any
  lines below it must not complain, and that is all.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))

SECONDS = 90
"""How long a block may take on a busy machine."""
NOT_RUN = ("make", "pip")
"""Commands that change the machine: blocks that begin with one are left alone."""

_FENCE = re.compile(
    r"^(?:<!-- file: (?P<file>[\w./-]+) -->\n)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)
_NAME = re.compile(r"# ([\w/-]+\.\w+)\n")
_PRINTED = re.compile(r"^\s*print\(.*\)  # (?P<text>.*)$", re.MULTILINE)
_RAISED = re.compile(r"  # raises (?P<name>\w+)$", re.MULTILINE)
_COMPLAINTS = ("Traceback", "Error:", "command not found")
_END = "\x1e"
_SHELL = f"""
step() {{ eval "$1"; local status=$?; printf '{_END}'; return $status; }}
"""
_BAR = "░▒▓█╎┈╳"
_MASKS: Sequence[tuple[str, str]] = (
    (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "<id>"),
    (r"\b\d{4}-\d\d-\d\d[T ]", "<date> "),
    (r"\b\d\d:\d\d:\d\d(\.\d+Z)?", "<time>"),
    (r"(?:<1|\b\d+(?:\.\d+)?) (?:ms|s|min)\b(?: \d+ s\b)?", "<span>"),
    (r'("duration_(?:ms|seconds)": )[\d.]+', r"\1<span>"),
    (r"\b[0-9a-f]{12,64}\b", "<digest>"),
    (r"\b(kill -9|process) \d+", r"\1 <pid>"),
    (rf"[{_BAR} ]*[{_BAR}]+[{_BAR} ]*", " <bar> "),
    (r"^\w+: line \d+: +\d+ Killed .*$", ""),  # the shell
    (r"^perdure: (\w+|[\w ,]+\.)( \w+=.*)?$", ""),  # the engine's warnings, which depend on who is faster
)


class Block(msgspec.Struct, frozen=True, kw_only=True):
    """A fenced block of a page."""

    language: str
    text: str
    line: int
    """Where it begins in the page, from 1."""
    file: str | None
    """What it is to be called, if it has a name."""


class Command(msgspec.Struct, frozen=True):
    """A command of a console block, and what it is said to print."""

    line: str
    printed: tuple[str, ...]


class Untrue(AssertionError):
    """A page says something that is not so."""


def blocks_of(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page, from top to bottom."""
    for found in _FENCE.finditer(page):
        text = found["text"]
        named = _NAME.match(text)
        yield Block(
            language=found["language"],
            text=text,
            line=page.count("\n", 0, found.start("text")) + 1,
            file=found["file"] or (named[1] if named else None),
        )


def commands_of(block: Block) -> list[Command]:
    """Return the commands of a console block."""
    commands: list[Command] = []
    for line in block.text.splitlines():
        if line.startswith("$ "):
            commands.append(Command(line.removeprefix("$ "), ()))
        elif commands:
            last = commands[-1]
            commands[-1] = Command(last.line, (*last.printed, line))
    return commands


def run_page(page: str, folder: Path) -> None:
    """Run the blocks of a page in a folder. Raises Untrue where one does not do what the page says."""
    for block in blocks_of(page):
        if block.file is not None:
            path = folder / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, encoding="utf-8")
        if block.language == "python":
            _run_python(block, folder)
        elif block.language == "console":
            _run_console(block, folder)


def masked(line: str) -> str:
    """Return a line without what differs from one run to the next."""
    for pattern, instead in _MASKS:
        line = re.sub(pattern, instead, line)
    return " ".join(line.split())


def is_like(expected: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether printed lines are the expected ones, where `…` among those stands for any number of lines."""
    if not expected:
        return not printed
    head, *rest = expected
    if head == "…":
        return any(is_like(rest, printed[skipped:]) for skipped in range(len(printed) + 1))
    return bool(printed) and head == printed[0] and is_like(rest, printed[1:])


def outputs_of(block: Block, folder: Path) -> Iterator[tuple[Command, str]]:
    """Run a console block in one shell, and yield what each of its commands printed."""
    commands = commands_of(block)
    script = _SHELL + "".join(f"step {_quoted(command.line)}\n" for command in commands)
    done = _run(["bash", "-c", script], folder, stderr=subprocess.STDOUT)
    printed = done.stdout.split(_END)
    if len(printed) != len(commands) + 1:
        raise Untrue(f"line {block.line}: the shell did not come to its end:\n{done.stdout}")
    for command, output in zip(commands, printed, strict=False):
        yield command, output.replace(str(folder), ".")


def _run_console(block: Block, folder: Path) -> None:
    commands = commands_of(block)
    if not commands or commands[0].line.startswith(NOT_RUN):
        return
    for command, output in outputs_of(block, folder):
        if not command.printed:
            complaint = next((word for word in _COMPLAINTS if word in output), None)
            if complaint is not None:
                raise Untrue(f"line {block.line}: `{command.line}` complains:\n{output}")
            continue
        expected, printed = (_lines(part) for part in ("\n".join(command.printed), output))
        if not is_like(expected, printed):
            raise Untrue(
                f"line {block.line}: `{command.line}` prints\n\n{output}\nand not, with times and ids masked,\n\n"
                + "\n".join(expected)
            )


def _lines(text: str) -> list[str]:
    return [line for line in map(masked, text.splitlines()) if line]


def _run_python(block: Block, folder: Path) -> None:
    said = [found["text"] for found in _PRINTED.finditer(block.text)]
    raised = _RAISED.search(block.text)
    name = block.file or f"block_{block.line}.py"
    (folder / name).write_text(block.text, encoding="utf-8")
    is_program = block.file is None or said or raised is not None
    done = _run([sys.executable, *([name] if is_program else ["-c", f"import {Path(name).stem}"])], folder)
    if raised is not None:
        if done.returncode == 0 or raised["name"] not in done.stderr.splitlines()[-1]:
            raise Untrue(f"line {block.line}: it does not raise {raised['name']}:\n{done.stderr}")
    elif done.returncode:
        raise Untrue(f"line {block.line}: it fails:\n{done.stderr}")
    elif said and not is_like(list(map(masked, said)), _lines(done.stdout)):
        raise Untrue(f"line {block.line}: it prints\n{done.stdout}\nand not\n" + "\n".join(said))


def _run(command: list[str], folder: Path, stderr: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and end whatever it has left running in the background."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def _environment() -> Mapping[str, str]:
    programs = str(Path(sys.executable).parent)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    return kept | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
        "PYTHONPYCACHEPREFIX": str(ROOT / ".cache" / "pycache"),  # and not in folders that a page may list
    }


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
