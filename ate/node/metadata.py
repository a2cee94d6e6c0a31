"""The metadata endpoint: plain HTTP at the sandbox's gateway, where an actor learns who it is and gets its credentials.

    GET /v1/identity                         {"atespace", "name", "uid", "subject"}
    GET /v1/token?audience=A[&audience=B]    {"token", "expiresAt"}; also &seconds=300..3600
    GET /v1/certificate                      {"certificates", "privateKey", "trustBundle", "expiresAt"}, all PEM

Every request needs the header `ate-metadata: true` and this address as its Host, and may not have come through a proxy:
a program that can be talked into fetching a URL gets nothing. Whoever asks is the actor active in this worker, for only
its network leads here. Part of the ateom role.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import trio
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from ate import http_framing as framing
from ate import log, names
from ate.errors import AteError, FailedPrecondition, InvalidArgument, PermissionDenied
from ate.http_framing import RequestHead
from ate.http_once import JSON, OneRequest, Reply
from ate.node.credentials import PATIENCE, Credentials
from ate.node.worker import Active

_log = log.Logger(__name__)

PORT: Final = 80
HEADER: Final = b"ate-metadata"
_MOST_AT_ONCE: Final = 16
_STATUS: Final = {InvalidArgument: 400, PermissionDenied: 403, FailedPrecondition: 409}


class Metadata:
    """Answers for the actor that `credentials` is about."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials
        self._handle = OneRequest(self._reply, at_once=_MOST_AT_ONCE, timeout=PATIENCE)

    async def serve(self, listener: trio.abc.Listener[Any]) -> None:
        """Accepts for ever. Errors of one connection end that connection only."""
        await trio.serve_listeners(self.serve_stream, [listener])

    async def serve_stream(self, stream: trio.abc.Stream) -> None:
        try:
            await self._handle(stream)
        except Exception as error:
            _log.error("the metadata endpoint failed", exc=error)

    async def _reply(self, head: RequestHead) -> Reply:
        status, body = await self._answer(head)
        return Reply(status, json.dumps(body).encode() + b"\n", JSON, ((b"Cache-Control", b"no-store"),))

    async def _answer(self, head: RequestHead) -> tuple[int, dict[str, Any]]:
        refusal = _refusal(head)
        if refusal:
            return 403, {"error": refusal}
        active = self._credentials.active()
        if active is None:
            return 503, {"error": "no actor is active here"}
        url = urlsplit(head.target.decode("latin-1"))
        if head.method != b"GET":
            return 405, {"error": "only GET is answered here"}
        try:
            question = parse_qs(url.query, keep_blank_values=True, strict_parsing=bool(url.query))
            match url.path:
                case "/v1/identity":
                    return 200, _identity(active)
                case "/v1/token":
                    return 200, await self._token(active, question)
                case "/v1/certificate":
                    return 200, await self._certificate(active)
            return 404, {"error": "there are /v1/identity, /v1/token?audience=… and /v1/certificate"}
        except ValueError as error:
            return 400, {"error": f"the query is malformed: {error}"}
        except AteError as error:
            _log.info("an actor got no credential", actor_uid=active.uid, error=error.message)
            return _STATUS.get(type(error), 503), {"error": error.message}

    async def _token(self, active: Active, question: dict[str, list[str]]) -> dict[str, Any]:
        unknown = set(question) - {"audience", "seconds"}
        if unknown:
            raise InvalidArgument(f"there is no {sorted(unknown)[0]!r}: give audience and, if need be, seconds")
        seconds = question.get("seconds", ["0"])[-1]
        if not seconds.isascii() or not seconds.isdecimal() or len(seconds) > 9:
            raise InvalidArgument(f"seconds: {seconds[:20]!r} is no number")
        token = await self._credentials.token(active, question.get("audience", []), int(seconds))
        return {"token": token.text, "expiresAt": token.expires_at}

    async def _certificate(self, active: Active) -> dict[str, Any]:
        found = await self._credentials.certificate(active)
        return {
            "certificates": _pem(found.chain),
            "privateKey": found.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
            "trustBundle": _pem(found.bundle),
            "expiresAt": found.expires_at,
        }


def _pem(certificates: Iterable[x509.Certificate]) -> str:
    return "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in certificates)


def listen(port: int = PORT) -> trio.SocketListener:
    """At the gateway's address of this network namespace, which is there only while an actor is active."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_IP, socket.IP_FREEBIND if hasattr(socket, "IP_FREEBIND") else 15, 1)
    sock.bind((names.GATEWAY_ADDRESS, port))
    sock.listen(64)
    return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


def _refusal(head: RequestHead) -> str:
    """Why a request may be one that the program was talked into; empty when it is its own."""
    if framing.values(head.headers, HEADER) != [b"true"]:
        return "the header `ate-metadata: true` is missing"
    here = names.GATEWAY_ADDRESS.encode()
    if framing.values(head.headers, b"host") not in ([here], [b"%s:%d" % (here, PORT)]):
        return f"Host is not {names.GATEWAY_ADDRESS}"
    if any(framing.values(head.headers, name) for name in (b"x-forwarded-for", b"forwarded", b"via")):
        return "the request came through a proxy"
    return ""


def _identity(active: Active) -> dict[str, Any]:
    ref = active.ref
    subject = f"atespaces:{ref.atespace}:actors:{ref.name}"
    return {"atespace": ref.atespace, "name": ref.name, "uid": active.uid, "subject": subject}
