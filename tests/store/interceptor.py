"""Sockets in front of PostgreSQL: one that can lose answers, one that forgets sessions as a transaction pooler does."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

SOCKET = ".s.PGSQL.5432"


class Front(ABC):
    """Listens in a folder of its own and serves each client until one side goes."""

    def __init__(self, url: str, folder: Path) -> None:
        parts = urlsplit(url)
        (server,) = parse_qs(parts.query)["host"]
        self.url = f"postgresql://postgres@{parts.path}?host={folder}"
        self._server = str(Path(server) / SOCKET)
        self._socket = str(folder / SOCKET)
        self._clients: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        listener = await asyncio.start_unix_server(self._accept, path=self._socket)
        try:
            yield
        finally:
            listener.close()
            for task in list(self._clients):
                task.cancel()
            await asyncio.gather(*self._clients, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            await self.serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.transport.abort()
            self._clients.discard(task)

    @abstractmethod
    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one client, until one side goes."""


class AnswerLoser(Front):
    """Passes everything on. What the server answers to a message that it was told of, it keeps, and cuts the connection."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url, folder)
        self.lost = 0
        self._marks: list[bytes] = []

    def lose_answer_to(self, mark: str) -> None:
        """Lose the answer to the next message that holds `mark`, after the server has given it."""
        self._marks.append(mark.encode())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_unix_connection(self._server)
        to_lose = asyncio.Event()
        try:
            asking = asyncio.create_task(self._ask(reader, server_writer, to_lose))
            answering = asyncio.create_task(self._answer(server_reader, writer, to_lose))
            await asyncio.wait((asking, answering), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (asking, answering):
                task.cancel()
            await asyncio.gather(asking, answering, return_exceptions=True)
            server_writer.close()

    async def _ask(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to_lose: asyncio.Event) -> None:
        while data := await reader.read(1 << 20):
            for mark in [mark for mark in self._marks if mark in data]:
                self._marks.remove(mark)
                to_lose.set()
            writer.write(data)
            await writer.drain()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to_lose: asyncio.Event) -> None:
        while data := await reader.read(1 << 20):
            if to_lose.is_set():
                self.lost += 1
                return
            writer.write(data)
            await writer.drain()


_READY = b"Z"
_DESCRIBED = b"TnE"
"""How the answer to a description ends: rows, none, or an error."""


class Pooler(Front):
    """Gives each transaction a server session of its own, fresh: whoever relies on one that lasts fails."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        startup = await _read_startup(reader)
        server_reader, server_writer = await self._session(startup)
        await _pass_answers(server_reader, writer, _READY)
        server_writer.close()
        while True:
            server_reader, server_writer = await self._session(startup)
            try:
                await _pass_answers(server_reader, None, _READY)
                last = b""
                while last[-1:] != b"I" or last[:1] != _READY:
                    kind = await _pass_question(reader, server_writer)
                    last = await _pass_answers(server_reader, writer, _DESCRIBED if kind == b"H" else _READY)
            finally:
                server_writer.close()

    async def _session(self, startup: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_unix_connection(self._server)
        writer.write(startup)
        await writer.drain()
        return reader, writer


async def _read_startup(reader: asyncio.StreamReader) -> bytes:
    size = await reader.readexactly(4)
    return size + await reader.readexactly(int.from_bytes(size, "big") - 4)


async def _read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    return head[:1], head + await reader.readexactly(int.from_bytes(head[1:], "big") - 4)


async def _pass_question(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Pass messages on up to one that wants an answer: a simple query, a Sync or a Flush."""
    while True:
        kind, message = await _read_message(reader)
        writer.write(message)
        if kind in (b"Q", b"S", b"H"):
            await writer.drain()
            return kind
        if kind == b"X":
            raise ConnectionResetError


async def _pass_answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter | None, ends: bytes) -> bytes:
    """Pass messages on up to one of the kinds `ends`, and return that one."""
    while True:
        kind, message = await _read_message(reader)
        if writer is not None:
            writer.write(message)
        if kind in ends:
            if writer is not None:
                await writer.drain()
            return message
