"""`perdure retry`, `jump`, `promote`, `restore` and `branches`: a run goes back, and goes on otherwise."""

from __future__ import annotations

import json

import click
import pytest

from perdure.cli.back import read_items
from tests.cli.conftest import Cli

FLOW = """
import os
from perdure import node, workflow

@node
def load(n: int) -> list[int]:
    print("load")
    return list(range(n))

@node
def total(xs: list[int], scale: float = 1.0) -> float:
    print("total")
    if os.path.exists("bad"):
        raise RuntimeError("the disk is full")
    return sum(xs) * scale

@node
def report(t: float) -> str:
    print("report")
    return f"total {t}"

@workflow
def flow(n: int) -> str:
    return report(total(load(n)))
"""


@pytest.fixture
def failed(cli: Cli) -> Cli:
    """A run that has failed, and would not any more."""
    cli.write("flow.py", FLOW)
    cli.write("bad", "")
    assert cli("run", "flow.py", "-i", "n=5", "--run-id", "r1").returncode == 1
    (cli.folder / "bad").unlink()
    return cli


def printed(output: str) -> list[str]:
    """Return what the bodies have printed, among what is told of the run."""
    return [line for line in output.splitlines() if line in ("load", "total", "report")]


def test_a_failed_run_is_tried_again_where_it_failed(failed: Cli):
    told = failed("retry", "r1", "--dry-run")
    assert told.stdout == "2 nodes would run: total, report\n1 node would be kept: load\n"

    done = failed("retry", "r1", "--reason", "there is room by now")

    assert done.returncode == 0
    assert printed(done.stdout) == ["total", "report"]
    assert "run reopened: there is room by now" in done.stdout
    assert done.stdout.endswith("total 10.0\n")
    assert failed("verify", "r1").returncode == 0
    again = failed("retry", "r1")
    assert again.returncode == 2
    assert "nothing of it has failed" in again.stderr


def test_the_code_is_what_it_is_by_now(failed: Cli):
    failed.write("flow.py", FLOW.replace('f"total {t}"', 'f"sum {t}"'))

    assert failed("retry", "r1").stdout.endswith("sum 10.0\n")


def test_a_run_goes_back_to_a_node_with_other_values(failed: Cli):
    failed("retry", "r1")

    told = failed.json("jump", "r1", "total", "-i", "scale=2.5", "--dry-run")
    scaled = failed("jump", "r1", "total", "-i", "scale=2.5")
    said = failed("jump", "r1", "total", "--output", "7", "--reason", "as the books say")

    assert told == {
        "runs": ["total", "report"],
        "kept": ["load"],
        "asks": [],
        "in_doubt": [],
        "given_up": None,
        "items": {},
    }
    assert printed(scaled.stdout) == ["total", "report"]
    assert scaled.stdout.endswith("total 25.0\n")
    assert printed(said.stdout) == ["report"]
    assert said.stdout.endswith("total 7.0\n")
    branches = failed.json("branches", "r1")
    assert [(branch["branch"], branch["parent"], branch["reason"]) for branch in branches] == [
        (1, None, ""),
        (2, 1, ""),
        (3, 2, ""),
        (4, 3, "as the books say"),
    ]
    assert "total, report again; as the books say" in failed("branches", "r1").stdout
    assert failed("events", "r1").stdout.count("run goes back to total") == 2
    assert failed("verify").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("nowhere",), "no node 'nowhere' in its graph: it has 'load', 'total', 'report'"),
        (("total", "-i", "size=3"), "it has no input 'size' (it has 'xs', 'scale')"),
        (("total", "-i", "scale=much"), "'scale':"),
        (("total", "-i", "scale"), "is not of the form name=value"),
        (("total", "-i", "scale=1", "-i", "scale=2"), "'scale' is given twice"),
        (("total", "-i", "scale=1", "--output", "2"), "do not go together"),
        (("total", "--output", '"much"'), "is not what node total returns"),
    ],
)
def test_nonsense_is_refused_and_nothing_changes(failed: Cli, arguments: tuple[str, ...], problem: str):
    before = failed.json("events", "r1")

    done = failed("jump", "r1", *arguments)

    assert done.returncode == 2
    assert problem in done.stderr
    assert failed.json("events", "r1") == before


@pytest.mark.slow
def test_a_run_is_shown_and_compared_as_it_was(failed: Cli):
    failed("retry", "r1")
    failed("jump", "r1", "total", "-i", "scale=2.5")

    then = failed.json("show", "r1", "--branch", "1")
    assert (then["status"], then["branch"], then["error"]["node_id"]) == ("failed", 1, "total")
    assert "as of   event" in failed("show", "r1", "--branch", "1").stdout
    assert failed("show", "r1", "--branch", "2", "--result").stdout == "total 10.0\n"
    assert failed.json("show", "r1", "--at", "1")["status"] == "created"
    told = failed("diff", "r1").stdout
    assert "total   given nothing else → scale = 2.5; 10.0 → 25.0" in told
    assert "= 1 node the same" in told
    assert failed.json("diff", "r1", "--branch", "1")["first"] == "total"
    assert "no difference" in failed("diff", "r1", "--branch", "2", "--other-branch", "2").stdout
    for arguments in (
        ("show", "r1", "--at", "999"),
        ("show", "r1", "--branch", "9"),
        ("diff", "r1", "--at", "nowhere"),
    ):
        refused = failed(*arguments)
        assert refused.returncode == 2
        assert "Run 'r1' has no" in refused.stderr


@pytest.mark.slow
def test_a_run_is_what_it_was_on_an_earlier_branch(failed: Cli):
    failed("retry", "r1")
    failed("jump", "r1", "total", "-i", "scale=2.5")

    told = failed("promote", "r1", "2", "--dry-run")
    assert told.stdout == "nothing would run\n3 nodes would be kept: load, total, report\n"
    done = failed("promote", "r1", "2", "--reason", "as it was")

    assert (done.returncode, printed(done.stdout)) == (0, [])
    assert "on branch 2: as it was" in done.stdout
    assert done.stdout.endswith("total 10.0\n")
    assert failed("show", "r1", "--result").stdout == "total 10.0\n"
    last = failed.json("branches", "r1")[-1]
    assert (last["branch"], last["parent"], last["restored"]) == (4, 2, True)
    assert f"as it was at {last['cut']}; as it was" in failed("branches", "r1").stdout
    assert failed.json("diff", "r1")["first"] is None, "it is compared with what it has become again"
    was_failed = failed("promote", "r1", "1")
    assert (was_failed.returncode, printed(was_failed.stdout)) == (1, [])
    assert "the disk is full" in was_failed.stdout
    assert failed("verify").returncode == 0


def test_a_run_goes_back_to_an_event(failed: Cli):
    failed("retry", "r1")
    loaded = next(event for event in failed.json("events", "r1") if event["type"] == "NodeCompleted")

    told = failed.json("restore", "r1", str(loaded["seq"]), "--dry-run")
    done = failed("restore", "r1", str(loaded["seq"]))

    assert (told["runs"], told["kept"], told["given_up"]) == (["total", "report"], ["load"], None)
    assert printed(done.stdout) == ["total", "report"]
    assert f"run goes back to event {loaded['seq']}, on branch 1: back to event {loaded['seq']}" in done.stdout
    assert done.stdout.endswith("total 10.0\n")
    assert failed("verify").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("promote", "r1", "1"), "it is on branch 1"),
        (("promote", "r1", "7"), "Run 'r1' has no branch 7"),
        (("promote", "r1", "first"), "'first' is not a valid whole number"),
        (("restore", "r1", "nowhere"), "Run 'r1' has no checkpoint 'nowhere'"),
        (("restore", "r1", "999"), "Run 'r1' has no event 999"),
        (("restore", "r1", "1"), "it had not started yet at that place"),
    ],
)
def test_a_run_that_cannot_be_what_it_was_stays_as_it_is(failed: Cli, arguments: tuple[str, ...], problem: str):
    before = failed.json("events", "r1")

    done = failed(*arguments)

    assert done.returncode == 2
    assert problem in done.stderr
    assert failed.json("events", "r1") == before


def test_another_run_begins_with_what_a_run_has_done(failed: Cli):
    before = failed.json("events", "r1")

    done = failed("fork", "r1", "--run-id", "r2")
    other = failed("fork", "r2", "-i", "n=6", "--run-id", "r3")

    assert printed(done.stdout) == ["total", "report"]
    assert done.stdout.endswith("total 10.0\n")
    assert printed(other.stdout) == ["load", "total", "report"]
    assert other.stdout.endswith("total 15.0\n")
    assert failed.json("events", "r1") == before
    assert f"a fork of run r1 at event {len(before)}" in failed("events", "r2").stdout
    assert failed("fork", "r1", "--run-id", "r2").stdout.endswith("total 10.0\n")
    assert failed("fork", "r1", "--run-id", "r2", "--at", "3").returncode == 2
    assert failed("verify").returncode == 0


MAPPED = """
from perdure import collect, node, workflow

@node
def double(x: int, add: int = 0) -> int:
    print(f"double {x}")
    return x * 2 + add

@node
def total(xs: list[int]) -> int:
    return sum(xs)

@workflow
def flow(n: int) -> int:
    return total(collect(double.map([0, 1, 2, 3, 4, 5, 6, 7, 8, 9])))
"""


def test_chosen_items_run_again(cli: Cli):
    cli.write("flow.py", MAPPED)
    assert cli("run", "flow.py", "-i", "n=1", "--run-id", "r1").returncode == 0
    told = cli("jump", "r1", "double", "--items", "3,6-8", "--dry-run")
    assert told.stdout == "2 nodes would run: double, total\nof double only items 3, 6-8\n"
    assert json.loads(cli("jump", "r1", "double", "--items", "3", "--dry-run", "--json").stdout)["items"] == {
        "double": [3]
    }

    done = cli("jump", "r1", "double", "--items", "3, 6-8", "-i", "add=100")

    assert done.returncode == 0
    called = sorted(line for line in done.stdout.splitlines() if line.startswith("double "))
    assert called == ["double 3", "double 6", "double 7", "double 8"]
    assert done.stdout.endswith("490\n")
    assert cli("verify", "r1").returncode == 0
    branches = cli("branches", "r1")
    assert "total again; items 3, 6-8 of double again" in branches.stdout
    assert "retried" not in branches.stdout
    first, second = json.loads(cli("branches", "r1", "--json").stdout)
    assert (first["items"], first["version"], second["version"]) == ({}, 1, 1)
    assert second["items"] == {"double": [{"first": 3, "last": 3}, {"first": 6, "last": 8}]}
    assert (second["retried"], second["dropped"]) == ([], ["total"])
    events = cli("events", "r1").stdout
    assert "goes back to items 3, 6-8 of double" in events
    assert "items 3, 6-8 of double again" in events

    for items, problem in (
        ("3,3", "item 3 of 'double' is chosen more than once"),
        ("10", "there is no item 10 of 'double': it has 10, from 0 to 9"),
    ):
        refused = cli("jump", "r1", "double", "--items", items)
        assert refused.returncode == 2
        assert problem in refused.stderr
    assert len(cli("branches", "r1").stdout.splitlines()) == 3


def test_items_that_a_failed_map_does_not_have_are_refused(cli: Cli):
    cli.write("flow.py", MAPPED.replace("    return x * 2", "    assert x != 6\n    return x * 2"))
    assert cli("run", "flow.py", "-i", "n=1", "--run-id", "r1").returncode == 1
    before = cli("events", "r1", "--json").stdout

    for more in ((), ("--dry-run",)):
        refused = cli("jump", "r1", "double", "--items", "3,12-14", *more)
        assert refused.returncode == 2
        assert "there is no item 12, 13, 14 of 'double': it has 10, from 0 to 9. Choose among those" in refused.stderr
    assert cli("events", "r1", "--json").stdout == before


@pytest.mark.parametrize(
    ("items", "problem"),
    [
        ("", "neither 3 nor 3-7"),
        ("3,", "neither 3 nor 3-7"),
        ("-1", "neither 3 nor 3-7"),
        ("a", "neither 3 nor 3-7"),
        ("1-x", "neither 3 nor 3-7"),
        ("\u0663", "neither 3 nor 3-7"),
        ("7-3", "ends before it begins"),
        ("0-99999999", "more than 1,000,000 items"),
        ("0-599999,600000-1199999", "more than 1,000,000 items"),
        ("0-999999,7", "more than 1,000,000 items"),
    ],
)
def test_what_names_no_items_is_refused(items: str, problem: str):
    with pytest.raises(click.UsageError, match=problem):
        read_items(items)


def test_items_and_an_output_do_not_go_together(cli: Cli):
    refused = cli("jump", "r1", "double", "--items", "3", "--output", "3")
    assert refused.returncode == 2
    assert "--items and --output do not go together" in refused.stderr


SOUND = (
    FLOW.replace("def total(", "def summed(")
    .replace("report(total(load(n)))", 'report(doubled(summed.named("total")(load(n))))')
    .replace("@workflow", "@node\ndef doubled(t: float) -> float:\n    return 2 * t\n\n@workflow")
)


@pytest.mark.parametrize("wish", [("jump", "r1", "total"), ("retry", "r1")])
def test_a_run_goes_on_with_another_version(failed: Cli, wish: tuple[str, ...]):
    failed.write("flow.py", SOUND)
    assert failed("run", "flow.py", "-i", "n=2", "--run-id", "r2").returncode == 0

    told = failed.json(*wish, "--version", "2", "--dry-run")
    done = failed(*wish, "--version", "latest", "--reason", "mended")

    assert told["runs"] == ["total", "doubled", "report"]
    assert (told["kept"], told["given_up"]) == (["load"], None)
    assert done.returncode == 0, done.stderr
    assert printed(done.stdout) == ["total", "report"]
    assert done.stdout.endswith("total 20.0\n")
    assert "goes on on branch 2, with version 2" in failed("events", "r1").stdout
    assert failed.json("show", "r1")["version"] == 2
    assert [branch["version"] for branch in failed.json("branches", "r1")] == [1, 2]
    heads, *rows = failed("branches", "r1").stdout.splitlines()
    assert [row[heads.index("VERSION")] for row in rows] == ["1", "2"]
    for look in (("show", "r1"), ("show", "r1", "--at", "3"), ("diff", "r1"), ("branches", "r1")):
        assert failed(*look).returncode == 0, look
    assert failed("verify").returncode == 0
    assert failed("doctor").returncode == 0


def test_a_version_on_which_it_cannot_go_on_is_refused(failed: Cli):
    failed.write("flow.py", SOUND.replace("def load(", "def fetch(").replace("load(n)", 'fetch.named("load")(n)'))
    assert failed("run", "flow.py", "-i", "n=2", "--run-id", "r2").returncode == 0

    refused = failed("jump", "r1", "total", "--version", "2")
    unknown = failed("jump", "r1", "total", "--version", "7")

    assert (refused.returncode, unknown.returncode) == (2, 2)
    assert "load: its type changed" in refused.stderr
    assert "7" in unknown.stderr
    assert failed.json("show", "r1")["version"] == 1


def test_other_inputs_are_read_as_what_they_are_for(cli: Cli):
    cli.write(
        "flow.py",
        """
from datetime import date
from perdure import node, workflow

@node
def label(code: str, n: int, day: date) -> str:
    return f"{code!r} {n} {day.year}"

@workflow
def flow(code: str, n: int = 1, day: date = date(2026, 1, 31)) -> str:
    return label(code, n, day)
""",
    )
    assert cli("run", "flow.py", "-i", "code=7", "--run-id", "r1").stdout.endswith("'7' 1 2026\n")

    forked = cli("fork", "r1", "-i", "code=8", "-i", "n=2", "-i", "day=2027-02-03", "--run-id", "r2")
    jumped = cli("jump", "r1", "label", "-i", "code=true", "-i", "n=3", "-i", "day=2028-02-03")
    told = cli("jump", "r1", "label", "-i", "n=many", "--dry-run")

    assert forked.stdout.endswith("'8' 2 2027\n"), forked.stderr
    assert jumped.stdout.endswith("'true' 3 2028\n"), jumped.stderr
    assert told.returncode == 2
    assert "'n':" in told.stderr


SLOW = """
import os, time
from perdure import node, workflow

@node
def first() -> int:
    print("first")
    return 1

@node
def wait(x: int) -> int:
    while not os.path.exists("open"):
        time.sleep(0.01)
    return x + 1

@workflow(timeout=0.3)
def slow() -> int:
    return wait(first())
"""


@pytest.fixture
def too_slow(cli: Cli) -> Cli:
    """A run that has taken too long, and would not any more."""
    cli.write("flow.py", SLOW)
    cli("run", "flow.py", "--run-id", "tmo")
    cli.write("open", "")
    return cli


def test_a_run_that_took_too_long_says_how_it_is_given_more_time(too_slow: Cli):
    shown = too_slow("show", "tmo").stdout

    assert "and more time: perdure fork tmo --timeout SECONDS" in shown
    assert "with 0.3 s as before: perdure retry tmo" in shown


@pytest.mark.parametrize(("timeout", "settings"), [("60", {"timeout_seconds": 60.0}), ("none", {})])
def test_a_fork_may_be_driven_for_longer_than_the_run(too_slow: Cli, timeout: str, settings: dict[str, float]):
    done = too_slow("fork", "tmo", "--run-id", "more", "--timeout", timeout)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.endswith("2\n")
    assert "first started" not in done.stdout
    assert too_slow.json("events", "more")[0].get("settings", {}) == settings
    again = too_slow("fork", "tmo", "--run-id", "more", "--timeout", "7")
    assert again.returncode == 0
    assert "run more is there and keeps the settings that it was started with: --timeout stays" in again.stderr


@pytest.mark.parametrize("timeout", ["0", "-1", "soon", "inf", "nan"])
def test_a_fork_is_given_no_timeout_that_is_none(too_slow: Cli, timeout: str):
    done = too_slow("fork", "tmo", "--timeout", timeout)

    assert done.returncode == 2
    assert "--timeout" in done.stderr
    assert len(too_slow.json("list")) == 1


def test_a_run_that_is_there_says_which_settings_it_keeps(too_slow: Cli):
    done = too_slow("run", "flow.py", "--run-id", "tmo", "--timeout", "30", "--on-failure", "stop")

    assert done.returncode == 1
    assert "--timeout stays 0.3. `perdure fork tmo --timeout SECONDS`" in done.stderr
    assert "--on-failure" not in done.stderr


def test_what_was_under_way_then_is_not_drawn_as_lost(cli: Cli):
    cli.write(
        "flow.py",
        """
from perdure import node, workflow

@node
def one(x: int) -> int:
    return x

@workflow
def w(x: int = 1) -> int:
    return one(x)
""",
    )
    cli("run", "flow.py", "--run-id", "r1")
    (started,) = [entry["seq"] for entry in cli.json("events", "r1") if entry["type"] == "NodeStarted"]

    then = cli("show", "r1", "--at", str(started)).stdout

    assert "lost" not in then
    assert "running" in then
