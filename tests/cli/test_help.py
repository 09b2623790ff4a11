"""Help: it comes at once, and every command says what it does with an example."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import perdure
from perdure.cli import bench
from perdure.cli.entry import SECTIONS, Entry
from tests.cli.conftest import PERDURE, Cli

COMMANDS = [(name, entry) for section in SECTIONS.values() for name, entry in section.items()]
HELP_TIMES = 8


def test_help_lists_every_command(cli: Cli):
    done = cli("--help")

    assert done.returncode == 0
    for name, entry in COMMANDS:
        assert f"  {name} " in done.stdout
        assert entry.summary in done.stdout
    assert "0 done, 1 the run failed, 2 wrong use, 3 the run waits, 4 it was cancelled" in " ".join(done.stdout.split())


def test_no_command_at_all_gives_help(cli: Cli):
    done = cli()

    assert done.returncode == 2
    assert "Usage: perdure" in done.stdout + done.stderr


def test_the_version_is_told(cli: Cli):
    assert cli("--version").stdout == f"perdure {perdure.__version__}\n"


@pytest.mark.parametrize(("name", "entry"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_command_has_an_example(name: str, entry: Entry):
    module = import_module(f"perdure.cli.{entry.module}")
    command: click.Command = getattr(module, f"{name}_command")

    text = command.get_help(click.Context(command, info_name=name))

    assert command.name == name
    assert f"  perdure {name}" in text
    assert "Usage:" in text


def test_help_on_measurements_needs_no_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(bench, "_CHECKOUT", tmp_path)

    helped = CliRunner().invoke(bench.bench_command, ["--help"])

    assert helped.exit_code == 0
    assert "not with the package" in helped.output


def test_help_loads_neither_the_engine_nor_rich():
    command = [sys.executable, "-X", "importtime", "-m", "perdure", "--help"]

    done = subprocess.run(command, capture_output=True, text=True, check=True)

    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "perdure.cli.entry" in loaded
    assert not {
        name for name in loaded if name.startswith(("rich", "apsw", "asyncio", "perdure.engine", "perdure.store"))
    }


@pytest.mark.slow
def test_help_comes_at_once():
    def seconds(command: Sequence[str]) -> float:
        """What it takes of a processor: a busy machine makes it wait, but not work, for longer."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(command, capture_output=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # A machine whose caches others use does more work for the same. What the interpreter itself takes tells by how much.
    times = [(seconds([*PERDURE, "--help"]), seconds([sys.executable, "-c", "import json, logging"])) for _ in range(5)]
    assert min(helped for helped, _ in times) < HELP_TIMES * min(bare for _, bare in times)
