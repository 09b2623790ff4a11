"""The plugin as users have it: real runs of pytest in a folder of their own."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.slow

FLOW = """
from perdure import ask, node, when, workflow


@node
async def fetch(url: str) -> str:
    return f"text of {url}"


@node
async def publish(text: str) -> str:
    return f"published: {text}"


@workflow
def digest(url: str) -> str:
    text = fetch(url)
    with when(ask("Publish this?", schema=bool, show=text)):
        link = publish(text)
    return link
"""


@pytest.fixture
def folder(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv("PERDURE_TEST_STORE", raising=False)
    pytester.makeini("[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error")
    return pytester


def test_a_module_of_tests(folder: pytest.Pytester):
    folder.makepyfile(
        FLOW
        + """

def test_it_is_published(perdure):
    perdure.stub(fetch, lambda url: "nothing")
    perdure.answer("Publish this?", True)

    run = perdure.run(digest, url="x")

    assert run.output == "published: nothing"
    run.assert_ran(fetch, times=1)


def test_it_is_not_stubbed_here(perdure):
    perdure.answer("Publish this?", True)

    assert perdure.run(digest, url="x").output == "published: text of x"


def test_it_survives(perdure):
    perdure.answer("Publish this?", True)

    perdure.assert_survives(digest, url="x")
"""
    )

    folder.runpytest_subprocess("--strict-markers").assert_outcomes(passed=3)


def test_a_failure_shows_the_run_and_none_of_our_code(folder: pytest.Pytester):
    folder.makepyfile(
        FLOW
        + """

def test_it_is_published(perdure):
    run = perdure.run(digest, url="x")
    run.assert_ran(publish, times=2)
"""
    )

    result = folder.runpytest_subprocess()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">       run.assert_ran(publish, times=2)",
            "E       AssertionError: 'publish' ran never, not 2 times",
            "E       run * of digest is awaiting_input: asks 'Publish this?'",
            "E         node     status     attempts  ran  items",
            "E         fetch    completed  1         1",
            "E         ask      suspended  1         0           asks 'Publish this?'",
            "E         publish  idle",
        ]
    )
    result.stdout.no_fnmatch_line("*raise AssertionError*")


@pytest.mark.parametrize("mode", ["prepend", "importlib"])
def test_a_process_is_killed_that_runs_a_workflow_of_the_test_module(folder: pytest.Pytester, mode: str):
    folder.makepyfile(
        FLOW
        + """

def test_a_kill(perdure):
    perdure.answer("Publish this?", True)
    run = perdure.kill_at(2, digest, url="x")
    assert run.output == "published: text of x"
    run.assert_ran("fetch", times=2)
"""
    )

    folder.runpytest_subprocess(f"--import-mode={mode}").assert_outcomes(passed=1)


def test_a_module_that_cannot_be_imported_again_is_told(folder: pytest.Pytester):
    folder.makepyfile(
        FLOW
        + """
import sys
assert "pytest" in sys.modules, "only under pytest"

def test_a_kill(perdure):
    perdure.kill_at(2, digest, url="x")
"""
    )

    result = folder.runpytest_subprocess()

    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the process that runs the workflow has ended with 1:*", "*only under pytest*"])


MARKED = (
    FLOW
    + """
import pytest

@pytest.mark.perdure(store="postgresql")
def test_in_postgresql(perdure):
    run = perdure.run(digest, url="x")
    assert perdure.url.startswith("postgresql:")

@pytest.mark.perdure(store="sqlite")
def test_in_sqlite(perdure):
    run = perdure.run(digest, url="x")
    assert perdure.url.startswith("sqlite:")

def test_anywhere(perdure):
    run = perdure.run(digest, url="x")
    run.assert_waiting_for("Publish this?")
    print("in", perdure.url)
"""
)


def test_a_marker_names_the_store_or_is_told_to_be_wrong(folder: pytest.Pytester):
    folder.makepyfile(
        FLOW
        + """
import pytest

@pytest.mark.perdure("postgresql")
def test_in_postgresql(perdure):
    pass

@pytest.mark.perdure(database="postgresql")
def test_somewhere(perdure):
    pass
"""
    )

    result = folder.runpytest_subprocess()

    result.assert_outcomes(skipped=1, errors=1)
    result.stdout.fnmatch_lines(["*unexpected keyword argument 'database'*"])


def test_without_a_server_what_needs_one_is_skipped(folder: pytest.Pytester):
    folder.makepyfile(MARKED)

    result = folder.runpytest_subprocess("-rsP")

    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["in sqlite:///*", "*name one with --perdure-store=postgresql://*"])


@pytest.mark.parametrize("way", ["option", "variable"])
def test_a_server_is_named(folder: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, postgres_url: str, way: str):
    folder.makepyfile(MARKED)
    monkeypatch.chdir(folder.path)
    if way == "variable":
        monkeypatch.setenv("PERDURE_TEST_STORE", postgres_url)

    result = folder.runpytest_subprocess("-rP", *([f"--perdure-store={postgres_url}"] if way == "option" else []))

    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["in postgresql:*perdure_test_*"])


@pytest.mark.parametrize("name", ["mysql://x", "postgres"])
def test_a_store_that_does_not_exist_is_told(folder: pytest.Pytester, name: str):
    folder.makepyfile(FLOW + "\ndef test_it(perdure):\n    perdure.run(digest, url='x')\n")

    result = folder.runpytest_subprocess(f"--perdure-store={name}")

    result.stdout.fnmatch_lines([f"*{name!r} names no store for tests*"])


def test_nothing_is_loaded_for_tests_that_do_not_use_it(folder: pytest.Pytester):
    folder.makepyfile(
        """
import sys

def test_other_things():
    assert "pytest_perdure" in sys.modules
    assert [name for name in sys.modules if name.partition(".")[0] == "perdure"] == []
"""
    )

    folder.runpytest_subprocess().assert_outcomes(passed=1)


def test_perdure_does_not_need_pytest(folder: pytest.Pytester):
    program = "import sys, perdure.testing.rehearsal as r; assert 'pytest' not in sys.modules and r.Rehearsal"

    assert folder.runpython_c(program).ret == 0
