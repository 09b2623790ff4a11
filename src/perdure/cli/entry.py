"""Where every command begins and ends: finds it, runs it, and turns what comes of it into words and an exit code.

Commands are imported one at a time, when they are used, so that asking for help costs next to nothing.
"""

from __future__ import annotations

import errno
import fcntl
import io
import logging
import os
import sys
from importlib import import_module
from typing import Any, NoReturn, TextIO

import click
import msgspec

from perdure import __version__
from perdure.cli.exits import Exit, exit_for
from perdure.cli.logged import show_warnings
from perdure.dispatch.printing import outlive_readers
from perdure.errors import PerdureError
from perdure.graph.calls import did_you_mean

JSON_OPTION = "--json"
_OUT_OF_REACH = frozenset((errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENOTDIR, errno.ENAMETOOLONG))
"""What the operating system says of places that were named and cannot be used."""
_NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""What it says where the output goes to a file, and the disk is full."""


class Entry(msgspec.Struct, frozen=True):
    """A command: where it is, and what the list of commands says of it."""

    module: str
    summary: str


SECTIONS = {
    "Start": {
        "demo": Entry("demo", "Watch a workflow survive a crash, in a minute."),
        "run": Entry("run", "Run a workflow to its end, or go on where it stopped."),
        "resume": Entry("run", "Go on with a run that was interrupted, was paused or waits."),
        "pause": Entry("pausing", "Pause a run, or many, until they are resumed."),
        "cancel": Entry("act", "Stop a run for good."),
        "retry": Entry("back", "Go on with a run that has failed: try again what has."),
        "jump": Entry("back", "Go back to a node and go on from there, perhaps with other values."),
        "restore": Entry("back", "Go back to what a run was at a checkpoint, and go on from there."),
        "fork": Entry("forking", "Begin another run with what a run has done."),
        "promote": Entry("back", "Go on from what a run was at the end of an earlier branch."),
    },
    "Tell": {
        "answer": Entry("answer", "Answer what a run asks; without arguments, list all that is asked."),
        "signal": Entry("send", "Send a signal to a run."),
        "send": Entry("send", "Give items to an input of a run that is a stream."),
        "triggers": Entry("triggers", "List what feeds runs from outside; feed an inbox; see when a schedule fires."),
        "resolve": Entry("act", "Say what became of a node in doubt."),
        "alias": Entry("alias", "Say which version of a workflow a name means, or roll that back; list the names."),
        "checkpoint": Entry("checkpoint", "Name the place where a run is, or list the names that it has."),
    },
    "Look": {
        "list": Entry("look", "List runs, newest first."),
        "show": Entry("show", "Show a run: its nodes over time, its result, its errors."),
        "events": Entry("look", "Print the log of a run, or follow it."),
        "logs": Entry("look", "Print what the nodes of a run have logged."),
        "versions": Entry(
            "versions", "List versions of workflows, save one, compare two; see if a run can follow one."
        ),
        "branches": Entry("back", "List the lines of history of a run."),
        "diff": Entry("compare", "Compare a run with its own past, or with another run."),
    },
    "Keep": {
        "export": Entry("bundle", "Write a run whole into a file."),
        "import": Entry("bundle", "Take up a run from a file."),
        "tag": Entry("tag", "Give a run tags to find it by, or list those that it has."),
        "delete": Entry("delete", "Delete the values of runs that have ended."),
        "backup": Entry("backup", "Copy a store that is one file, while runs go on."),
        "archive": Entry("archive", "Move runs that ended long ago into files, list them, bring them back."),
    },
    "Check": {
        "validate": Entry("check", "Say all that is wrong with a workflow, without running it."),
        "verify": Entry("check", "Prove that stored runs are whole."),
        "doctor": Entry("doctor", "Find runs whose rows do not agree with their logs, and repair them."),
        "gc": Entry("collect", "Remove blobs that no run refers to."),
        "compact": Entry("compact", "Make long logs take less room."),
        "bench": Entry("bench", "Measure perdure and its peers, from a checkout."),
    },
}
"""All commands. Each is the attribute `<name>_command` of its module."""

_ENTRIES = {name: entry for section in SECTIONS.values() for name, entry in section.items()}


class Commands(click.Group):
    """The commands, each imported when it is wanted."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_ENTRIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = _ENTRIES.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(f"perdure.cli.{entry.module}"), f"{cmd_name}_command")
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in _ENTRIES and not args[0].startswith("-"):
            ctx.fail(f"There is no command {args[0]!r}{did_you_mean(args[0], _ENTRIES)}.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.summary) for name, entry in section.items()], col_max=12)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # before click makes a failure of it
            if ctx.invoked_subcommand not in SECTIONS["Look"]:
                return _exit_code_of_bug(error)
            _give_up(sys.stdout)
            return 0
        except PerdureError as error:
            outlive_readers()
            tell_error(error.code, str(error))
            return exit_for(error)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done, 1 the run failed, 2 wrong use, 3 the run waits, 4 it was cancelled.",
)
@click.version_option(__version__, prog_name="perdure", message="%(prog)s %(version)s")
@click.pass_context
def commands(ctx: click.Context) -> None:
    """Run graphs of Python nodes so that nothing is lost.

    Runs are kept in the store that --store or PERDURE_STORE names, else in ./perdure.db.

    \b
      perdure demo
      perdure run flow.py --input name=Ada
      perdure show RUN
    """
    if ctx.invoked_subcommand in SECTIONS["Look"]:
        # Nothing is wanted of it where nobody reads it; of what is done and checked, at least the exit code is.
        sys.stdout = ctx.obj


def main() -> NoReturn:
    """Run the command line and end the process."""
    _open_streams()
    _prepare_streams()
    show_warnings()
    output = sys.stdout
    outlive_readers()
    sys.exit(_exit_code(output))


def tell_error(code: str, message: str) -> None:
    """Say what went wrong: what, why, what to do, and no traceback."""
    _tell_document(code, message)
    is_coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    click.echo(click.style("Error:", fg="red" if is_coloured else None) + f" {message.rstrip()}", err=True)


def _tell_document(code: str, message: str) -> None:
    """Print an error as JSON, if that is how the command was asked to print. It may not have come to reading its options."""
    if JSON_OPTION in sys.argv[1:]:
        document = {"error": {"code": code, "message": message}}
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))


def _exit_code(output: TextIO) -> int:
    try:
        return int(commands.main(prog_name="perdure", standalone_mode=False, obj=output) or 0)
    except click.ClickException as error:
        outlive_readers()
        _tell_document("wrong_use", error.format_message())
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return Exit.INTERRUPTED
    except OSError as error:
        return _exit_code_for(error)
    except Exception as error:  # a bug of ours: the exit code must not say that the run failed
        return _exit_code_of_bug(error)


def _exit_code_for(error: OSError) -> int:
    if error.errno in _NO_ROOM and error.filename is None:
        _give_up(sys.stdout)
        tell_error("wrong_use", f"The output cannot be written ({error.strerror}).")
        return Exit.WRONG_USE
    if error.filename is None or error.errno not in _OUT_OF_REACH:
        return _exit_code_of_bug(error)
    place = os.fsdecode(error.filename)
    tell_error(
        "wrong_use", f"{place} is out of reach ({error.strerror}). Check the rights of the file and of its folders."
    )
    return Exit.WRONG_USE


def _give_up(stream: TextIO) -> None:
    """Let what is left of the output go nowhere; Python would try to write it when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _exit_code_of_bug(error: Exception) -> int:
    _tell_document("bug", f"This is a bug in perdure: {type(error).__name__}: {error}")
    logging.getLogger("perdure").critical("This is a bug in perdure.", exc_info=error)
    return Exit.BUG


def _open_streams() -> None:
    """Let standard streams that are closed lead nowhere: else the next file that is opened, a database perhaps, has the number of
    one of them, and what programs print goes into it."""
    for number, name, mode, useless in (
        (0, "stdin", "r", os.O_WRONLY),
        (1, "stdout", "w", os.O_RDONLY),
        (2, "stderr", "w", os.O_RDONLY),
    ):
        if _mode_of(number) in (None, useless):
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:  # it is the lowest that is free, which often is this one
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def _mode_of(number: int) -> int | None:
    """Return what a descriptor can be used for; None if it is closed. A shell that was told to close one may have put the script
    that it reads in its place."""
    try:
        return fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE
    except OSError:
        return None


def _prepare_streams() -> None:
    """A terminal that cannot show a character shows another one; it does not end the program."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace", line_buffering=True)
