"""The gate every Run and Restore passes: each container with a `readyz` probe must answer 200 before anyone is told.

Polling starts while the runtime command still works, and goes on every millisecond when that is done, so readiness is
seen when it comes and not a poll interval later. Runs in the worker's network namespace. Used by ateom.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import trio

from ate import http_framing as framing
from ate import names
from ate.errors import NOT_READY, DeadlineExceeded, with_reason

_INTERVAL: Final = 0.001
_INTERVAL_BEFORE: Final = 0.005  # each poll takes time from the runtime command, on few cores
_CONNECT_SECONDS: Final = 0.02
_REQUEST_SECONDS: Final = 0.25


@dataclass(frozen=True, slots=True)
class Probe:
    """`timeout` in seconds for the whole wait."""

    container: str
    path: str
    port: int
    timeout: float = 30.0

    @property
    def url(self) -> str:
        return f"http://{names.ACTOR_ADDRESS}:{self.port}{self.path}"


async def wait_until_ready(probes: Sequence[Probe], started: trio.Event | None = None) -> None:
    """Returns when every probe was answered 200 once. DeadlineExceeded names container, URL and the last answer
    (reason NOT_READY).

    `started`: set when the runtime command is done, if that still works.
    """
    async with trio.open_nursery() as nursery:
        for probe in probes:
            nursery.start_soon(_poll, probe, started)


async def _poll(probe: Probe, started: trio.Event | None) -> None:
    last, answered = "it was never asked", False
    with trio.move_on_after(probe.timeout):
        while True:
            status, said = await _ask(probe)
            if status == 200:
                return
            if status or not answered:  # on a busy machine one lost poll would hide what it answers all the time
                last, answered = said, bool(status)
            await trio.sleep(_INTERVAL if started is None or started.is_set() else _INTERVAL_BEFORE)
    late = f"container {probe.container!r} was not ready within {probe.timeout:g} s: GET {probe.url}: {last}"
    raise with_reason(DeadlineExceeded(late), NOT_READY)


async def _ask(probe: Probe) -> tuple[int, str]:
    path = probe.path if probe.path.startswith("/") else f"/{probe.path}"
    request = f"GET {path} HTTP/1.1\r\nHost: {names.ACTOR_ADDRESS}:{probe.port}\r\nConnection: close\r\n\r\n"
    connection = trio.socket.socket()
    try:
        # A SYN sent while the sandbox takes over the link is lost, and its repetition would come a second later:
        # so connecting gets little time, and is tried again.
        with trio.fail_after(_CONNECT_SECONDS):
            await connection.connect((names.ACTOR_ADDRESS, probe.port))
        with trio.fail_after(_REQUEST_SECONDS):
            await connection.send(request.encode())
            buffer = bytearray()
            while not framing.find_head(buffer):
                data = await connection.recv(4096)
                if not data:
                    return 0, "the connection was closed without an answer"
                buffer += data
            response = framing.parse_response(bytes(buffer[: framing.find_head(buffer)]))
            return response.status, f"answered {response.status}"
    except trio.TooSlowError:
        return 0, "no answer in time"
    except OSError as error:
        return 0, error.strerror or str(error)
    except framing.BadMessage as error:
        return 0, f"not an HTTP answer: {error.reason}"
    finally:
        connection.close()
