"""`perdure gc`: says what goes, takes only that, and mistrusts a place that does not seem to be the store's."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from perdure.ids import digest_of
from perdure.store.opening import open_store
from tests.cli.conftest import Cli

DRAWING = """
from perdure import Image, SyncContext, node, workflow

@node
def drawn(ctx: SyncContext) -> Image:
    ctx.asset(b"a draft")
    return ctx.asset(b"picture", kind=Image, name="picture.png")

@workflow
def drawing() -> Image:
    return drawn()
"""
KEPT, GARBAGE = digest_of(b"picture"), digest_of(b"a draft")


@pytest.fixture
def drawn(cli: Cli) -> Cli:
    """A folder in which a run has left an asset and some garbage, long ago."""
    cli.write("flow.py", DRAWING)
    assert cli("run", "flow.py", "--run-id", "r1").returncode == 0
    grow_old(cli.folder)
    return cli


def grow_old(folder: Path) -> None:
    for path in folder.glob("*blobs/??/*"):
        os.utime(path, (1, 1))


def blobs_in(cli: Cli, place: str = "perdure.db-blobs") -> set[str]:
    return {path.name for path in cli.folder.glob(f"{place}/??/*")}


def test_garbage_is_counted_and_then_taken(drawn: Cli):
    planned = drawn("gc", "--dry-run")
    assert (planned.returncode, blobs_in(drawn)) == (0, {KEPT, GARBAGE})
    assert "1 blob, 7 B would be removed." in planned.stdout
    assert "1 in use, 0 too young" in planned.stdout

    done = drawn("gc")

    assert (done.returncode, blobs_in(drawn)) == (0, {KEPT})
    assert "✓ 1 blob, 7 B removed." in done.stdout
    assert "0 blobs, 0 B removed." in drawn("gc").stdout
    assert drawn("verify").returncode == 0


def test_the_same_as_json(drawn: Cli):
    expected = {
        "place": str(drawn.folder / "perdure.db-blobs"),
        "used": 1,
        "young": 0,
        "collected": 1,
        "collected_bytes": 7,
    }

    assert drawn.json("gc", "--dry-run") == {**expected, "dry_run": True}
    assert drawn.json("gc") == {**expected, "dry_run": False}


def test_what_is_young_stays(cli: Cli):
    cli.write("flow.py", DRAWING)
    cli("run", "flow.py")

    done = cli.json("gc", "--older-than", "60m")

    assert (done["young"], done["collected"]) == (1, 0)
    assert blobs_in(cli) == {KEPT, GARBAGE}


@pytest.mark.parametrize("given", ["59m", "0s", "week", "7", "-1d", "1.5h", ""])
def test_a_time_that_is_none_or_too_short_is_wrong_use(drawn: Cli, given: str):
    done = drawn("gc", "--older-than", given)

    assert done.returncode == 2
    assert "--older-than" in done.stderr
    assert "Traceback" not in done.stderr
    assert blobs_in(drawn) == {KEPT, GARBAGE}


async def make_store(url: str) -> None:
    store = await open_store(url)
    await store.close()


def test_a_place_that_seems_to_be_another_stores_is_left_alone(drawn: Cli):
    assert drawn("run", "flow.py", "--store", "sqlite:///other.db").returncode == 0
    grow_old(drawn.folder)
    elsewhere = (drawn.folder / "perdure.db-blobs").as_uri()
    asyncio.run(make_store(f"sqlite:///{drawn.folder / 'empty.db'}"))

    refused = drawn("gc", "--store", "sqlite:///empty.db", "--blobs", elsewhere)

    assert refused.returncode == 2
    assert "may well be another one's" in refused.stderr
    assert blobs_in(drawn) == {KEPT, GARBAGE}
    forced = drawn("gc", "--store", "sqlite:///empty.db", "--blobs", elsewhere, "--force")
    assert forced.returncode == 0
    assert blobs_in(drawn) == set()
    assert blobs_in(drawn, "other.db-blobs") == {KEPT, GARBAGE}


def test_a_store_that_does_not_exist_is_not_made(cli: Cli):
    done = cli("gc")

    assert done.returncode == 2
    assert list(cli.folder.iterdir()) == []


def test_a_place_that_does_not_exist_has_no_garbage(cli: Cli):
    cli.write("flow.py", DRAWING)
    cli("run", "flow.py")

    assert cli.json("gc", "--blobs", (cli.folder / "nowhere").as_uri())["collected"] == 0
    assert not (cli.folder / "nowhere").exists()
