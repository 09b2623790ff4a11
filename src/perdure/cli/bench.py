"""`perdure bench`: the measurements of a checkout."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import click

from perdure.cli.exits import Exit
from perdure.errors import ProgramError

_CHECKOUT = Path(__file__).parents[3]


@click.command("bench", context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def bench_command(ctx: click.Context, arguments: Sequence[str]) -> int:
    """Measure perdure, and other engines beside it. The measurements come with a checkout, not with the package.

    \b
      perdure bench --quick
      perdure bench --help
    """
    if not (_CHECKOUT / "bench" / "__main__.py").is_file():
        if {"-h", "--help"} & set(arguments):
            click.echo(ctx.get_help())
            return Exit.DONE
        raise ProgramError(
            "The measurements are not part of the installed package. Run this in a checkout of perdure that is "
            "installed with `pip install -e .`."
        )
    if find_spec("psutil") is None:
        raise ProgramError(
            "The measurements need what development needs. In the checkout, `make bench` installs that into .venv, and "
            "`.venv/bin/perdure bench` has it from then on."
        )
    # The arguments are those of the caller, for a program of our own.
    return subprocess.run([sys.executable, "-m", "bench", *arguments], cwd=_CHECKOUT, check=False).returncode  # noqa: S603
