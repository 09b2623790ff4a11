"""Which PostgreSQL a URL means, and how to speak of it without its password."""

from __future__ import annotations

from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import msgspec

from perdure.errors import StoreUnavailable

_SECRET = frozenset(("password", "passfile", "sslpassword", "sslkey"))
_YES = frozenset(("1", "true", "yes", "on"))
_NO = frozenset(("0", "false", "no", "off"))
_ENCODED = (
    "Write postgresql://user:password@host:5432/database, where a password has its special characters percent-encoded (/ is %2F, "
    "@ is %40)."
)


class Address(msgspec.Struct, frozen=True, kw_only=True):
    """Where the database is."""

    dsn: str
    """What the driver is given."""
    where: str
    """What people are told: no password in it."""
    pooled: bool = False
    """Behind PgBouncer in transaction mode: neither settings nor prepared statements outlive a transaction, nobody listens."""
    has_secret: bool = False
    """There is a password in it, or where one is kept."""
    names_program: bool = False
    """The URL says itself under which name the server should list the connection."""


def parse_url(url: str) -> Address:
    """Read `postgresql://user:password@host:port/database`, with `?pgbouncer=1` and any option of the driver."""
    try:
        parts = urlsplit(url)
    except ValueError:  # which may say the password
        raise StoreUnavailable(f"The PostgreSQL URL cannot be read. {_ENCODED}") from None
    if parts.scheme not in ("postgresql", "postgres"):
        raise StoreUnavailable("This is no PostgreSQL URL. Write postgresql://user@host/database.")
    options = parse_qsl(parts.query, keep_blank_values=True)
    if any("@" in text for text in (parts.path, parts.fragment, *dict(options))):
        # A password went on after what looks like the end of the host.
        raise StoreUnavailable(f"The PostgreSQL URL has an @ behind its host. {_ENCODED}")
    _require_ports(parts.netloc)
    pooled = [value.lower() for name, value in options if name == "pgbouncer"]
    if any(value not in _YES | _NO for value in pooled):
        raise StoreUnavailable(f"The option pgbouncer of a PostgreSQL URL is 1 or 0, not {pooled[-1]!r}.")
    query = urlencode([(name, value) for name, value in options if name != "pgbouncer"], quote_via=quote)
    shown = urlencode([(name, value) for name, value in options if name not in _SECRET], quote_via=quote, safe="/,")
    return Address(
        dsn=urlunsplit(parts._replace(query=query)),
        where=urlunsplit(parts._replace(netloc=_without_password(parts.netloc), query=shown)),
        pooled=any(value in _YES for value in pooled),
        has_secret=bool(parts.password) or any(name in _SECRET for name, _ in options),
        names_program=any(name == "application_name" for name, _ in options),
    )


def _require_ports(netloc: str) -> None:
    for host in netloc.rpartition("@")[2].split(","):
        _, _, port = host.rpartition("]")[2].partition(":")
        if port and not (port.isascii() and port.isdigit()):
            # Not which: it may be the beginning of a password.
            raise StoreUnavailable(f"The port in the PostgreSQL URL is not a number. {_ENCODED}")


def _without_password(netloc: str) -> str:
    login, at, hosts = netloc.rpartition("@")
    return login.partition(":")[0] + at + hosts
