"""Where `ctx.secret` looks: the environment, under `PERDURE_SECRET_<NAME>`."""

from __future__ import annotations

import os


def environment_secret(name: str) -> str:
    """Return the secret, or raise KeyError with the remedy."""
    variable = f"PERDURE_SECRET_{name.upper()}"
    try:
        return os.environ[variable]
    except KeyError:
        raise KeyError(f"there is no secret {name!r}: set the environment variable {variable}") from None
