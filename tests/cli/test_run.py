"""`perdure run`: what it runs, with which inputs, what it prints, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.cli.conftest import FAILING, FLOW, GATED, Cli, read_until


def test_a_workflow_runs_and_its_result_is_printed(cli: Cli):
    cli.write("flow.py", FLOW)

    done = cli("run", "flow.py", "--input", "name=Ada")

    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == "11"
    assert "run as a program" not in done.stderr


def test_in_a_pipe_every_event_is_a_plain_line(cli: Cli):
    cli.write("flow.py", FLOW)

    lines = cli("run", "flow.py", "--input", "name=Ada", "--run-id", "r1").stdout.splitlines()

    assert "run r1 of hello, version 1" in lines
    told = [line.partition(" ")[2] for line in lines]
    assert "greeting started" in told
    assert any(line.startswith("length completed in") for line in told)
    assert not any("\x1b" in line for line in lines)


def test_lines_are_printed_as_they_happen(cli: Cli):
    cli.write("flow.py", GATED)

    process = cli.start("run", "flow.py")
    read_until(process, "gate started")  # which waits for the file

    cli.write("open", "")
    assert process.communicate(timeout=30)[0].splitlines()[-1] == "3"


@pytest.mark.parametrize(
    ("given", "value"),
    [("name=5", "5"), ('name="5"', "5"), ("name=true", "true"), ("name=a=b", "a=b"), ("name=", ""), ("name={", "{")],
)
def test_a_text_stays_a_text(cli: Cli, given: str, value: str):
    cli.write("flow.py", FLOW)

    assert cli.json("run", "flow.py", "--input", given)["inputs"] == {"name": value, "factor": 1}


def test_inputs_come_from_a_file_and_are_overridden_on_the_command_line(cli: Cli):
    cli.write("flow.py", FLOW)
    cli.write("in.json", '{"name": "Ada", "factor": 2}')

    assert cli.json("run", "flow.py", "--inputs", "in.json")["inputs"] == {"name": "Ada", "factor": 2}
    assert cli.json("run", "flow.py", "--inputs", "in.json", "-i", "factor=3")["inputs"]["factor"] == 3
    assert cli.json("run", "flow.py", "--inputs", "-", stdin='{"name": "Bo"}')["inputs"]["name"] == "Bo"


def test_json_is_one_document_whatever_the_bodies_print(cli: Cli):
    cli.write("flow.py", 'print("loading")\n' + FLOW)

    done = cli("run", "flow.py", "--input", "name=Ada", "--json")

    document = json.loads(done.stdout)
    assert document["status"] == "completed"
    assert document["outputs"] == {"output": 11}
    assert "a body prints" in done.stderr
    assert "loading" in done.stderr


def test_a_failed_run_exits_with_one_and_shows_where(cli: Cli):
    cli.write("flow.py", FAILING)

    done = cli("run", "flow.py", "--run-id", "f1")

    assert done.returncode == 1
    assert "bad: ValueError: no 7 today" in done.stdout
    assert 'raise ValueError(f"no {n} today")' in done.stdout
    assert "perdure events f1" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_finished_run_gives_its_result_again_without_running(cli: Cli):
    cli.write("flow.py", GATED)
    cli.write("open", "")
    first = cli("run", "flow.py", "--run-id", "r1")

    again = cli("run", "flow.py", "--run-id", "r1")

    assert (first.returncode, again.returncode) == (0, 0)
    assert again.stdout.splitlines()[-1] == first.stdout.splitlines()[-1]
    assert cli.ledger() == ["first", "gate", "last"]


def test_a_failed_run_fails_again_without_running(cli: Cli):
    cli.write("flow.py", FAILING)
    cli("run", "flow.py", "--run-id", "f1")

    assert cli("run", "flow.py", "--run-id", "f1").returncode == 1
    assert len(cli.json("list")) == 1


def test_an_id_that_is_taken_by_other_inputs_is_refused(cli: Cli):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "--input", "name=Ada", "--run-id", "r1")

    done = cli("run", "flow.py", "--input", "name=Bo", "--run-id", "r1")

    assert done.returncode == 2
    assert "started differently (input 'name')" in done.stderr


def test_an_id_that_is_taken_by_another_version_is_refused_and_saves_none(cli: Cli):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "--input", "name=Ada", "--run-id", "r1")
    cli.write("flow.py", FLOW.replace("length(greeting(name), factor)", "length(greeting(greeting(name)), factor)"))

    done = cli("run", "flow.py", "--input", "name=Ada", "--run-id", "r1")

    assert done.returncode == 2
    assert "started differently (version 1 of the workflow, which has changed since)" in done.stderr
    assert [found["version"] for found in cli.json("versions")] == [1]


def test_settings_reach_the_run(cli: Cli):
    cli.write("flow.py", GATED)

    done = cli(
        "run", "flow.py", "--timeout", "0.3", "--durability", "async", "--on-failure", "finish", "--run-id", "r1"
    )

    assert done.returncode == 1
    assert "took longer than 0.3 s" in done.stdout
    created = cli.json("events", "r1")[0]
    assert created["settings"] == {"durability": "async", "on_failure": "finish", "timeout_seconds": 0.3}


def test_a_file_is_called_the_same_by_python_and_by_perdure(cli: Cli):
    script = GATED + '\nif __name__ == "__main__":\n    print(gated.options(run_id="r1").run())\n'
    cli.write("flow.py", script)
    cli.write("open", "")
    subprocess.run([sys.executable, "flow.py"], cwd=cli.folder, env=cli.environment, check=True, capture_output=True)

    done = cli("run", "flow.py", "--run-id", "r1")

    assert done.returncode == 0
    assert cli.ledger() == ["first", "gate", "last"]
    assert {node["type"] for node in cli.json("show", "r1")["nodes"]} == {"flow.first", "flow.gate", "flow.last"}


def test_the_newest_text_of_a_file_runs_and_nothing_is_left_beside_it(cli: Cli):
    cli.write("flow.py", FAILING.replace("today", "11111"))
    cli("run", "flow.py")
    cli.write("flow.py", FAILING.replace("today", "22222"))

    assert "no 7 22222" in cli("run", "flow.py").stdout
    assert not (cli.folder / "__pycache__").exists()


def test_modules_beside_the_file_can_be_imported(cli: Cli):
    cli.write("inner/parts.py", "from perdure import node\n@node\ndef half(n: int) -> float:\n    return n / 2\n")
    cli.write(
        "inner/flow.py",
        "from parts import half\nfrom perdure import workflow\n@workflow\ndef w(n: int) -> float:\n    return half(n)\n",
    )

    done = cli("run", "inner/flow.py", "-i", "n=3")

    assert done.stdout.splitlines()[-1] == "1.5"


def test_a_module_of_a_package_runs_with_its_relative_imports(cli: Cli):
    cli.write("flows/__init__.py", "")
    cli.write("flows/parts.py", "from perdure import node\n@node\ndef inc(n: int) -> int:\n    return n + 1\n")
    flow = (
        "from perdure import workflow\nfrom .parts import inc\n@workflow\ndef add(n: int) -> int:\n    return inc(n)\n"
    )
    cli.write("flows/adding.py", flow)

    done = cli("run", "flows.adding:add", "--input", "n=1")
    as_file = cli("run", "flows/adding.py", "--input", "n=1")

    assert done.returncode == 0, done
    assert done.stdout.endswith("\n2\n")
    assert cli("validate", "flows.adding").returncode == 0
    assert as_file.returncode == 2
    assert "Name it as a module, from the folder of the package" in as_file.stderr


def test_a_file_may_have_several_workflows_if_one_is_named(cli: Cli):
    cli.write("flow.py", FLOW + FAILING)

    unnamed, named = cli("run", "flow.py"), cli("run", "flow.py:hello", "-i", "name=Ada")

    assert unnamed.returncode == 2
    assert "hello, failing" in unnamed.stderr
    assert named.returncode == 0


GRAPH = """
name: sums
inputs: [{name: n, schema: {type: integer}}, {name: label, schema: {type: string}, default: x}]
nodes:
  - {id: twice, type: parts.twice}
edges:
  - {source: $input, sourceHandle: n, target: twice, targetHandle: n}
  - {source: twice, target: $output, targetHandle: output}
"""
PARTS = "from perdure import node\n@node\ndef twice(n: int) -> int:\n    return 2 * n\n"


def test_a_graph_runs_with_node_types_from_elsewhere(cli: Cli):
    cli.write("graph.yaml", GRAPH)
    cli.write("parts.py", PARTS)

    by_file = cli.json("run", "graph.yaml", "--import", "parts.py", "-i", "n=4", "-i", "label=5")
    by_name = cli.json("run", "graph.yaml", "--import", "parts", "-i", "n=4")

    assert by_file["outputs"] == by_name["outputs"] == {"output": 8}
    assert by_file["inputs"] == {"n": 4, "label": "5"}


def test_a_graph_with_unknown_node_types_is_refused(cli: Cli):
    cli.write("graph.yaml", GRAPH)

    done = cli("run", "graph.yaml", "-i", "n=4")

    assert done.returncode == 2
    assert "parts.twice" in done.stderr
    assert not (cli.folder / "perdure.db").exists()


def test_the_store_is_named_by_option_or_environment(cli: Cli):
    cli.write("flow.py", FLOW)

    cli("run", "flow.py", "-i", "name=a", env={"PERDURE_STORE": "sqlite:///by-env.db"})
    cli("run", "flow.py", "-i", "name=a", "--store", "sqlite:///given.db", env={"PERDURE_STORE": "sqlite:///by-env.db"})

    assert len(cli.json("list", "--store", "sqlite:///by-env.db")) == 1
    assert len(cli.json("list", "--store", "sqlite:///given.db")) == 1
    assert not (cli.folder / "perdure.db").exists()


def test_a_run_goes_on_when_nobody_reads_its_output(cli: Cli):
    cli.write("flow.py", GATED)
    process = cli.start("run", "flow.py", "--run-id", "r1")
    read_until(process, "gate started")
    assert process.stdout is not None
    process.stdout.close()

    cli.write("open", "")

    assert process.wait(timeout=30) == 0
    assert cli.json("show", "r1")["status"] == "completed"
