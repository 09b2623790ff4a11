"""`perdure validate` and `perdure verify`: everything that is wrong is said, and nothing is run."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

from perdure.engine.engine import Engine
from perdure.engine.inspect import verify_run
from perdure.graph.declare import node, workflow
from tests.cli.conftest import FLOW, GATED, Cli

FAULTY = """
{"name": "faulty",
 "nodes": [{"id": "a", "type": "flow.length", "data": {"text": "x", "typo": 1}}, {"id": "b", "type": "gone"}],
 "edges": [{"source": "nowhere", "target": "a", "targetHandle": "factor"}]}
"""


@node
def big(n: int) -> str:
    return "x" * n


@workflow
def large(n: int) -> str:
    return big(n)


def test_a_valid_workflow_is_praised_and_not_run(cli: Cli):
    cli.write("flow.py", GATED)

    done = cli("validate", "flow.py")

    assert done.returncode == 0
    assert "✓ gated 3 nodes, 3 edges" in done.stdout
    assert [path.name for path in cli.folder.iterdir()] == ["flow.py"]


def test_every_fault_of_a_graph_is_listed(cli: Cli):
    cli.write("flow.py", FLOW)
    cli.write("graph.json", FAULTY)

    done = cli("validate", "graph.json", "--import", "flow.py")
    (document,) = cli.json("validate", "graph.json", "--import", "flow.py")

    assert done.returncode == 2
    assert document["valid"] is False
    assert {"unknown_type", "unknown_handle", "dangling_reference"} <= {fault["rule"] for fault in document["faults"]}
    for fault in document["faults"]:
        assert fault["message"] in done.stdout
        assert fault["remedy"] in done.stdout


def test_every_workflow_of_a_file_is_checked(cli: Cli):
    broken = "\n@workflow\ndef broken(name: str) -> int:\n    if greeting(name):\n        return length(name, 1)\n"
    cli.write("flow.py", FLOW.replace("\nif __name__", broken + "\nif __name__"))

    documents = cli.json("validate", "flow.py")

    assert [(document["workflow"], document["valid"]) for document in documents] == [("hello", True), ("broken", False)]
    assert cli("validate", "flow.py").returncode == 2
    assert cli("validate", "flow.py:hello").returncode == 0


@pytest.mark.parametrize("text", ["{", "[]", "name: x\nnodes: 3\n"])
def test_a_document_that_is_no_graph_is_refused(cli: Cli, text: str):
    cli.write("graph.yaml", text)

    done = cli("validate", "graph.yaml")

    assert done.returncode == 2
    assert "graph.yaml" in done.stderr
    assert "Traceback" not in done.stderr


def test_all_that_is_wrong_with_the_shape_of_a_document_is_told_as_data_too(cli: Cli):
    cli.write("graph.json", '{"name": "w", "nodes": [{"id": "a"}, {"id": 3, "type": "t"}], "edges": [{"source": "a"}]}')

    (document,) = cli.json("validate", "graph.json")

    assert (document["workflow"], document["valid"]) == ("graph", False)
    assert {fault["rule"] for fault in document["faults"]} == {"unreadable_graph"}
    assert [fault["message"].partition(":")[0] for fault in document["faults"]] == [
        "nodes[0]",
        "nodes[1].id",
        "edges[0]",
        "edges[0]",
    ]


def test_whole_runs_are_proved_to_be_whole(cli: Cli):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "-i", "name=a", "--run-id", "r1")
    cli("run", "flow.py", "-i", "name=b", "--run-id", "r2")

    assert "2 runs checked, all invariants hold" in cli("verify").stdout
    assert cli.json("verify", "r1") == {"runs": 1, "audited": [], "violations": [], "refused": []}


@pytest.mark.slow
def test_one_of_several_that_is_refused_holds_up_no_other(cli: Cli):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "-i", "name=a", "--run-id", "gone")
    cli("archive", "--older-than", "0s")
    cli("run", "flow.py", "-i", "name=b", "--run-id", "here")

    verified = cli("verify", "nobody", "gone", "here")
    examined = cli("doctor", "nobody", "gone", "here")

    assert (verified.returncode, examined.returncode) == (2, 2)
    assert verified.stdout == "✓ 2 runs checked, all invariants hold.\n", "one that is archived is read where it is"
    assert examined.stdout.splitlines() == ["✓ here", "✓ 1 run examined, nothing is wrong."]
    assert verified.stderr.count("Error: ") == 1
    assert examined.stderr.count("Error: ") == 2
    refused = [cli.json(command, "nobody", "here")["refused"] for command in ("verify", "doctor")]
    assert [[one["error"]["code"] for one in found] for found in refused] == [["run_not_found"], ["run_not_found"]]
    assert (cli("verify", "nobody", "no").stdout, cli("doctor", "nobody", "no").stdout) == ("", "")


@pytest.mark.parametrize(
    ("statement", "invariant"),
    [
        ("UPDATE run_state SET status = 'running', ended_at = NULL WHERE run_id = 'r1'", "I4"),
        ("UPDATE run_node_state SET attempt = 2 WHERE run_id = 'r1' AND node_id = 'length'", "I4"),
        ("DELETE FROM run_events WHERE run_id = 'r1' AND seq = 5", "I1"),
        ("UPDATE run_events SET payload = '{' WHERE run_id = 'r1' AND seq = 5", "I4"),
        ("UPDATE workflow_versions SET graph = replace(graph, 'greeting', 'greetings')", "I2"),
        ("UPDATE workflow_versions SET graph = '{}'", "I2"),
    ],
)
def test_tampering_is_found(cli: Cli, statement: str, invariant: str):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "-i", "name=a", "--run-id", "r1")
    connection = apsw.Connection(str(cli.folder / "perdure.db"))
    connection.execute("PRAGMA ignore_check_constraints = ON")
    connection.execute(statement)
    assert connection.changes()
    connection.close()

    done = cli("verify")

    assert done.returncode == 1
    assert invariant in {violation["invariant"] for violation in cli.json("verify")["violations"]}
    assert "1 of 1 run broken. `perdure doctor RUN`" in done.stdout
    assert "<RunStatus" not in done.stdout


async def test_a_blob_that_is_used_without_a_record_of_it_is_found(tmp_path: Path):
    async with Engine(f"sqlite:///{tmp_path}/perdure.db", workflows=[large]) as engine:
        await (await engine.start(large, n=400_000, run_id="r1")).result()
        apsw.Connection(str(tmp_path / "perdure.db")).execute("DELETE FROM blobs")

        (violation,) = await verify_run(engine, "r1")

        assert violation.invariant == "I29"
        assert "not recorded as used" in violation.problem


async def test_a_lost_blob_is_found(cli: Cli):
    url = f"sqlite:///{cli.folder}/perdure.db"
    async with Engine(url, workflows=[large]) as engine:
        run = await engine.start(large, n=400_000, run_id="r1")
        await run.result()
        assert await verify_run(engine, "r1") == []

        for blob in (cli.folder / "perdure.db-blobs").rglob("*"):
            if blob.is_file():
                blob.unlink()

        assert {violation.invariant for violation in await verify_run(engine, "r1")} == {"I29"}
        assert {violation.invariant for violation in await verify_run(engine.store, "r1")} == {"I29"}

    done = cli("verify")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "1 of 1 run broken. Blobs can only come back from a backup."
