"""One virtual environment per peer, made on demand: what one peer needs would break another."""

from __future__ import annotations

import functools
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.places import ROOT

INSTALL_SECONDS = 600
# What every environment needs for `bench.workloads`.
OURS = ("psutil",)


class NotInstalled(Exception):
    """The packages of a peer could not be installed. Carries the installer's last words."""


@functools.cache
def python_for(environment: str, packages: tuple[str, ...]) -> Path:
    """Return the interpreter of `environment`, which has `packages` installed. The empty name is this interpreter's."""
    if not environment:
        return Path(sys.executable)
    folder = ROOT / "venvs" / environment
    wanted = "\n".join((*packages, *OURS))
    record = folder / "requirements.txt"
    if not record.exists() or record.read_text() != wanted:
        _make(folder, (*packages, *OURS))
        record.write_text(wanted)
    return _python_in(folder)


def _make(folder: Path, packages: Sequence[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    uv = _uv()
    if uv is None:
        _run([sys.executable, "-m", "venv", str(folder)])
        _run([str(_python_in(folder)), "-m", "pip", "install", "--quiet", *packages])
        return
    _run([uv, "venv", "--quiet", "--python", sys.executable, str(folder)])
    # Compiled at once, so that no measured start-up pays for it.
    _run([uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", str(_python_in(folder)), *packages])


def _uv() -> str | None:
    beside = Path(sys.executable).parent / "uv"
    return str(beside) if beside.exists() else shutil.which("uv")


def _python_in(folder: Path) -> Path:
    return folder / "bin" / "python"


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    except subprocess.TimeoutExpired as expired:
        raise NotInstalled(f"installing took over {INSTALL_SECONDS} s") from expired
    if done.returncode != 0:
        raise NotInstalled((done.stderr or done.stdout).strip()[-500:])
