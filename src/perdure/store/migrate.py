"""Which migrations a database needs. Pure but for reading the numbered files that ship with a store."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files

import msgspec

from perdure.errors import StoreDamaged, StoreTooNew
from perdure.ids import digest_of

_FILE = re.compile(r"^(\d{4})_(\w+)\.sql$")


class Migration(msgspec.Struct, frozen=True, kw_only=True):
    """A numbered step of the schema. Never edited after it was released: the checksum tells."""

    number: int
    name: str
    sql: str
    checksum: str


def read_migrations(package: str) -> list[Migration]:
    """Return the migrations that ship in the package's `migrations` folder, in order."""
    found: list[Migration] = []
    for file in files(package).joinpath("migrations").iterdir():
        if match := _FILE.match(file.name):
            sql = file.read_text(encoding="utf-8")
            found.append(Migration(number=int(match[1]), name=match[2], sql=sql, checksum=digest_of(sql.encode())))
    return sorted(found, key=lambda migration: migration.number)


def plan(applied: Mapping[int, str], known: Sequence[Migration], *, where: str) -> list[Migration]:
    """Return what is still to be applied, given the checksums of what was. Refuses a database that is not ours to touch."""
    newest = known[-1].number
    if unknown := sorted(applied.keys() - {migration.number for migration in known}):
        raise StoreTooNew(
            f"The database {where} has schema {unknown[-1]}; this version of perdure knows schemas up to {newest}"
            f"{', but not that one' if unknown[-1] < newest else ''}. "
            "Nothing was changed. Upgrade perdure, or open another store."
        )
    for migration in known:
        if migration.number in applied and applied[migration.number] != migration.checksum:
            raise StoreDamaged(
                f"Migration {migration.number} ({migration.name}) of {where} is not the one that this version ships. "
                "Nothing was changed. The database was written by a build that was never released."
            )
    return [migration for migration in known if migration.number not in applied]
