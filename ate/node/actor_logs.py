"""ActorLogs as the node agent serves it: the lines its actors' containers wrote, from the files the workers keep."""

from __future__ import annotations

import json
from pathlib import Path

import trio

from ate.errors import InvalidArgument
from ate.names import is_uuid
from ate.proto import node_pb2
from ate.proto.node_grpc import ActorLogsBase
from ate.rpc import Call, server_streaming


class ActorLogs(ActorLogsBase):
    def __init__(self, root: Path) -> None:
        self._root = root / "logs"

    @server_streaming
    async def ReadActorLogs(self, request: node_pb2.ReadActorLogsRequest, call: Call) -> None:
        """Kept lines, oldest first, of one container or all; with `follow` also those to come."""
        if not is_uuid(request.actor_uid):
            raise InvalidArgument(f"actor_uid: {request.actor_uid!r} is not a UUID")
        folder = self._root / request.actor_uid
        offsets: dict[str, tuple[int, int]] = {}
        while True:
            found: list[tuple[str, str, str]] = []
            wanted = f"{request.container}.jsonl" if request.container else "*.jsonl"
            for path in sorted(folder.glob(wanted)):
                found += _new_lines(path, offsets, older=path.name not in offsets)
            for _, container, line in sorted(found, key=lambda item: item[0]):
                await call.send(node_pb2.ReadActorLogsResponse(container=container, line=line))
            if not request.follow:
                return
            with trio.move_on_after(0.2):
                await call.draining.wait()
                return


def _new_lines(path: Path, offsets: dict[str, tuple[int, int]], *, older: bool) -> list[tuple[str, str, str]]:
    """(time, container, line) of what was added since the last look; the rotated file first on the first look."""
    chunks: list[bytes] = []
    rotated = path.with_name(path.name + ".1")
    if older and rotated.exists():
        chunks.append(rotated.read_bytes())
    with path.open("rb") as file:
        inode = path.stat().st_ino
        known_inode, at = offsets.get(path.name, (inode, 0))
        file.seek(at if known_inode == inode else 0)
        data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        offsets[path.name] = (inode, file.tell() - len(data) + len(whole))
        chunks.append(whole)
    lines = []
    for raw in b"".join(chunks).decode("utf-8", "replace").splitlines():
        try:
            time = str(json.loads(raw).get("time", ""))
        except (ValueError, AttributeError):
            time = ""
        lines.append((time, path.name.removesuffix(".jsonl"), raw))
    return lines
