"""`perdure send`: feeding a run that another process drives."""

from __future__ import annotations

import json

import pytest

from tests.cli.asking import FLOW
from tests.cli.conftest import Cli


@pytest.mark.slow
def test_a_run_is_fed_by_another_process_until_it_is_closed(cli: Cli) -> None:
    cli.write("flow.py", FLOW)
    driving = cli.start("run", "flow.py:fed", "--run-id", "fed", "--stay", "--json")
    while cli("show", "fed", "--json").returncode:
        assert driving.poll() is None

    wrong = cli("send", "fed", "numbers", "three")
    first = cli("send", "fed", "numbers", "1", "--id", "a")
    again = cli("send", "fed", "numbers", "1", "--id", "a", "--json")
    last = cli("send", "fed", "numbers", "2", "3", "--close")
    output, _ = driving.communicate(timeout=30)
    late = cli("send", "fed", "numbers", "4")
    unknown = cli("send", "fed", "letters", "4")

    assert wrong.returncode == 2
    assert "does not fit" in wrong.stderr
    assert first.stdout == "input numbers of run fed: 1 item sent\n"
    assert json.loads(again.stdout) == {"run_id": "fed", "input": "numbers", "sent": 1, "closed": False}
    assert last.stdout == "input numbers of run fed: 2 items sent, closed\n"
    assert json.loads(output.splitlines()[-1] if output.count("\n") == 1 else output)["outputs"] == {
        "output": [2, 4, 6]
    }
    assert late.returncode == 2
    assert "is closed" in late.stderr
    assert unknown.returncode == 2
    assert "there is no input 'letters' that is a stream (there is 'numbers')" in unknown.stderr


def test_wrong_use_is_refused(cli: Cli) -> None:
    assert cli("send", "fed", "numbers").returncode == 2
    assert cli("send", "fed", "numbers", "1", "2", "--id", "a").returncode == 2
