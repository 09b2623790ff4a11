"""What many commands have in common: their options, where they find the store, and how they write JSON."""

from __future__ import annotations

import asyncio
import functools
import os
import re
import shlex
import sys
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, ParamSpec, TypeVar

import click
import msgspec
from click.core import ParameterSource

from perdure.cli.entry import JSON_OPTION
from perdure.dispatch.printing import outlive_readers
from perdure.ids import is_text, why_no_run_id
from perdure.store.opening import DEFAULT_URL, holds_password

COMMAND_LINE = "command line"
"""Who has said something to a run, if nobody else is named."""

LARGEST_NUMBER = 2**63 - 1
"""That databases can hold."""
_MOST_DIGITS = len(str(LARGEST_NUMBER))

_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """The store that a command works on."""

    url: str
    is_given: bool
    """Whether the command line named it, so that a further command has to name it again."""

    def command(self, *words: str) -> str:
        """Return a command line on the same store, for a person to type. It never shows a password."""
        store = ("--store", "URL" if holds_password(self.url) else self.url) if self.is_given else ()
        return shlex.join(("perdure", *words, *store))


def _place(ctx: click.Context, parameter: click.Parameter, value: str) -> Place:
    return Place(url=value, is_given=ctx.get_parameter_source("store") is ParameterSource.COMMANDLINE)


def store_option(command: F) -> F:
    """`--store URL`, else PERDURE_STORE, else a file in the current folder."""
    return click.option(
        "--store",
        metavar="URL",
        envvar="PERDURE_STORE",
        default=DEFAULT_URL,
        callback=_place,
        help=f"Where runs are kept: a database. Else PERDURE_STORE, else {DEFAULT_URL}.",
    )(command)


def json_option(command: F) -> F:
    """`--json`."""
    return click.option(JSON_OPTION, "as_json", is_flag=True, help="Print JSON for other programs.")(command)


class WholeNumber(click.IntRange):
    """A number from `min` on, called so in complaints. None is larger than databases can hold."""

    name = "whole number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if number > LARGEST_NUMBER:
            self.fail(f"{value} is too large: no number goes beyond {LARGEST_NUMBER}.", param, ctx)
        return number


class Seconds(click.FloatRange):
    """A time, called so in complaints. None is longer than a timedelta can be."""

    name = "number of seconds"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        seconds = super().convert(value, param, ctx)
        if not 0 <= seconds <= timedelta.max.total_seconds():  # not a number is neither
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return seconds


def stay_option(command: F) -> F:
    """`--stay`."""
    return click.option(
        "--stay", is_flag=True, help="Keep driving the run while it waits for people or signals, until it has ended."
    )(command)


def not_empty(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse an option that is given without a value: a variable in a script may have been empty."""
    if value == "":
        raise click.BadParameter("it is empty.", ctx, parameter)
    return value


def new_run_id(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Refuse what no run can be called."""
    if value is not None and not is_text(value):
        raise click.BadParameter(f"{value!r} is not UTF-8.", ctx, parameter)
    if value is not None and (problem := why_no_run_id(value)) is not None:
        raise click.BadParameter(f"{problem}.", ctx, parameter)
    return not_empty(ctx, parameter, value)


def age(ctx: click.Context, parameter: click.Parameter, value: str) -> timedelta:
    """Read a number with a unit: `7d`, `36h`, `90m`, `30s`."""
    found = re.fullmatch(r"(\d{1,6})([dhms])", value)
    if found is None:
        raise click.BadParameter(f"{value!r} is no time: give a number and a unit, such as 7d or 36h.", ctx, parameter)
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def place_in_log(text: str) -> int | str:
    """Read where in a log something is: the number of an event, or the name of a checkpoint."""
    if not text.isdecimal():
        return text
    if len(text) > _MOST_DIGITS:  # Python refuses to read some thousands of them
        raise click.UsageError(f"{text[:_MOST_DIGITS]}… is too large: no event has a number beyond {LARGEST_NUMBER}.")
    return int(text)


def imports_option(command: F) -> F:
    """`--import MODULE_OR_FILE`, any number of times."""
    return click.option(
        "--import",
        "imports",
        metavar="PLACE",
        multiple=True,
        help="A module or file that declares node types. May be given several times.",
    )(command)


def awaited(command: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, R]:
    """Let an async function be a command."""

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        return asyncio.run(command(*args, **kwargs))

    return run


@contextmanager
def users_output(*, as_json: bool) -> Generator[None]:
    """Where a user's code prints: printing does not fail for want of readers.

    Standard output is kept for the one JSON document, if that is wanted: then all else goes to standard error.
    """
    outlive_readers()
    if not as_json:
        yield
        return
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


def print_json(document: Any) -> None:
    """Print one JSON document, for people to read as well."""
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def print_json_line(document: Any) -> None:
    """Print a JSON document in one line, at once."""
    click.echo(msgspec.json.encode(document).decode())
