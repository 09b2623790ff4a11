"""The examples do what their first lines say, from the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cli.conftest import Cli

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_every_example_is_valid(cli: Cli):
    for example in sorted(EXAMPLES.glob("*.py")):
        assert cli("validate", str(example)).returncode == 0, example


def test_hello(cli: Cli):
    shutil.copy(EXAMPLES / "hello.py", cli.folder)

    done = cli("run", "hello.py", "--input", "name=Ada")

    assert done.returncode == 0
    assert done.stdout.splitlines()[-2:] == ["Hello, Ada!", "==========="]
