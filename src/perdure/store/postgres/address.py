"""Which PostgreSQL a URL means, and how to speak of it without its password."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec

from perdure.errors import StoreUnavailable

_SECRET = frozenset(("password", "passfile", "sslpassword", "sslkey"))
_YES = frozenset(("1", "true", "yes", "on"))
_NO = frozenset(("0", "false", "no", "off"))


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where the database is."""

    dsn: str
    """What the driver is given."""
    where: str
    """What people are told: no password in it."""
    pooled: bool = False
    """Behind PgBouncer in transaction mode: neither settings nor prepared statements outlive a transaction, nobody listens."""
    names_program: bool = False
    """The URL says itself under which name the server should list the connection."""


def parse_url(url: str) -> Address:
    """Read `postgresql://user:password@host:port/database`, with `?pgbouncer=1` and any option of the driver."""
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise StoreUnavailable("This is no PostgreSQL URL. Write postgresql://user@host/database.")
    _require_ports(parts.netloc)
    options = parse_qsl(parts.query, keep_blank_values=True)
    pooled = [value.lower() for name, value in options if name == "pgbouncer"]
    if any(value not in _YES | _NO for value in pooled):
        raise StoreUnavailable(f"The option pgbouncer of a PostgreSQL URL is 1 or 0, not {pooled[-1]!r}.")
    query = urlencode([(name, value) for name, value in options if name != "pgbouncer"], quote_via=quote)
    shown = urlencode([(name, value) for name, value in options if name not in _SECRET], quote_via=quote, safe="/,")
    return Address(
        dsn=urlunsplit(parts._replace(query=query)),
        where=urlunsplit(parts._replace(netloc=_without_password(parts.netloc), query=shown)),
        pooled=any(value in _YES for value in pooled),
        names_program=any(name == "application_name" for name, _ in options),
    )


def _require_ports(netloc: str) -> None:
    for host in netloc.rpartition("@")[2].split(","):
        _, _, port = host.rpartition("]")[2].partition(":")
        if port and not (port.isascii() and port.isdigit()):
            raise StoreUnavailable(
                f"{port!r} in a PostgreSQL URL is no port. Write postgresql://user@host:5432/database."
            )


def _without_password(netloc: str) -> str:
    login, at, hosts = netloc.rpartition("@")
    return login.partition(":")[0] + at + hosts
