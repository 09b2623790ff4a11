"""`perdure backup`."""

from __future__ import annotations

from tests.cli.conftest import FLOW, Cli


def test_a_store_is_copied(cli: Cli):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "--input", "name=Ada", "--run-id", "ada")

    done = cli.json("backup", "copy.db")

    assert done["file"] == str(cli.folder / "copy.db")
    assert cli.json("show", "ada", "--store", "sqlite:///copy.db") == cli.json("show", "ada")
    assert cli("verify", "--store", done["store"]).returncode == 0
    refused = cli("backup", "copy.db")
    assert (refused.returncode, "--force" in refused.stderr) == (2, True)
    assert cli("backup", "copy.db", "--force").returncode == 0
    (cli.folder / "nightly").mkdir()
    assert cli.json("backup", "nightly")["file"] == str(cli.folder / "nightly" / "perdure.db")
    assert cli.json("backup", "new/weekly/")["file"] == str(cli.folder / "new" / "weekly" / "perdure.db")
    assert cli("backup", "other/", "--store", "sqlite:///nothing.db").returncode != 0
    assert not (cli.folder / "other").exists()


def test_a_copy_without_all_of_the_archive_says_what_is_missing(cli: Cli):
    cli.write("flow.py", FLOW)
    cli("run", "flow.py", "--input", "name=Ada", "--run-id", "ada")
    assert cli("archive", "--older-than", "0s").returncode == 0
    (cli.folder / "perdure.db-archive").rename(cli.folder / "elsewhere")

    refused = cli("backup", "copy.db")

    assert refused.returncode == 2
    assert "is not there. Put the files back" in refused.stderr
    assert "Traceback" not in refused.stderr
