"""`perdure tag`, and `perdure list --tag`."""

from __future__ import annotations

from tests.cli.conftest import FLOW, Cli


def test_runs_are_tagged_and_found(cli: Cli):
    cli.write("flow.py", FLOW)
    for name in ("ada", "bob"):
        cli("run", "flow.py", "--input", f"name={name}", "--run-id", name)

    assert cli("tag", "ada").stdout == "Run ada has no tags.\n"
    assert cli.json("tag", "ada", "nightly", "customer:7") == {"run_id": "ada", "tags": ["customer:7", "nightly"]}

    assert [run["run_id"] for run in cli.json("list", "--tag", "nightly")] == ["ada"]
    assert cli.json("list")[1]["tags"] == ["customer:7", "nightly"]
    assert cli.json("show", "ada")["tags"] == ["customer:7", "nightly"]
    assert "customer:7, nightly" in cli("show", "ada").stdout
    assert cli("tag", "ada", "--remove", "nightly").stdout == "customer:7\n"
    assert cli("tag", "ada", " ").returncode == 2
    assert cli("tag", "nobody", "x").returncode == 2
