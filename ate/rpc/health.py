"""grpc.health.v1, built into every `Server`: one status a service, the empty name for the whole server."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import trio
from grpclib.health.v1.health_grpc import HealthBase
from grpclib.health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from ate.errors import NotFound, Unavailable
from ate.rpc.call import Call
from ate.rpc.handlers import server_streaming, unary

_SERVING = HealthCheckResponse.SERVING
_NOT_SERVING = HealthCheckResponse.NOT_SERVING
_UNKNOWN = HealthCheckResponse.SERVICE_UNKNOWN


class Health(HealthBase):
    """Every service starts as serving. `set` changes one; watchers hear of it."""

    def __init__(self, services: Iterable[str]) -> None:
        self._status: dict[str, Any] = dict.fromkeys(("", *services), _SERVING)
        self._changed = trio.lowlevel.ParkingLot()
        self._shut_down = False

    def set(self, service: str = "", *, serving: bool) -> None:
        """Sets the status of a service, by default of the whole server."""
        if not self._shut_down:
            self._status[service] = _SERVING if serving else _NOT_SERVING
            self._changed.unpark_all()

    def shut_down(self) -> None:
        """NOT_SERVING everywhere, for good; watches end once they have said so."""
        self._shut_down = True
        self._status = dict.fromkeys(self._status, _NOT_SERVING)
        self._changed.unpark_all()

    @unary
    async def Check(self, request: HealthCheckRequest, call: Call) -> HealthCheckResponse:
        status = self._status.get(request.service)
        if status is None:
            raise NotFound(f"service {request.service!r} is not known to this server")
        return HealthCheckResponse(status=status)

    @server_streaming
    async def Watch(self, request: HealthCheckRequest, call: Call) -> None:
        told = None
        while True:
            status = self._status.get(request.service, _UNKNOWN)
            if status != told:
                await call.send(HealthCheckResponse(status=status))
                told = status
            elif self._shut_down:
                raise Unavailable("the server is shutting down")
            else:
                await self._changed.park()
