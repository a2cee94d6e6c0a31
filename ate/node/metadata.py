"""The metadata endpoint: plain HTTP at the sandbox's gateway, where an actor learns who it is and gets its credentials.

    GET /v1/identity                         {"atespace", "name", "uid", "subject"}
    GET /v1/token?audience=A[&audience=B]    {"token", "expiresAt"}; also &seconds=300..3600
    GET /v1/certificate                      {"certificates", "privateKey", "trustBundle", "expiresAt"}, all PEM

Every request needs the header `ate-metadata: true` and this address as its Host, and may not have come through a proxy:
a program that can be talked into fetching a URL gets nothing. Whoever asks is the actor active in this worker, for only
its network leads here. What was minted is kept while it is fresh by the wall clock and dropped when the actor changes
or has slept. Part of the ateom role.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from ate import http_framing as framing
from ate import log, names
from ate.errors import AteError, FailedPrecondition, InvalidArgument, PermissionDenied
from ate.http_framing import RequestHead
from ate.http_once import JSON, OneRequest, Reply
from ate.node.worker import Active
from ate.proto import node_pb2
from ate.proto.node_grpc import ActorCredentialsStub

_log = log.Logger(__name__)

PORT: Final = 80
HEADER: Final = b"ate-metadata"
_FRESH: Final = 0.5
"""Share of its life for which what was minted is handed out again."""
_KEPT: Final = 32
_PATIENCE: Final = 30.0
_MOST_AT_ONCE: Final = 16
_STATUS: Final = {InvalidArgument: 400, PermissionDenied: 403, FailedPrecondition: 409}


@dataclass
class _Kept:
    """What was minted for one waking life of an actor: question -> (answer, Unix seconds until it is handed out)."""

    active: Active
    answers: dict[str, tuple[dict[str, Any], float]] = field(default_factory=dict)


class Metadata:
    """Answers for the actor that `active` gives; `mint` is the node's agent."""

    def __init__(
        self,
        active: Callable[[], Active | None],
        mint: ActorCredentialsStub,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._active, self._mint, self._wall_clock = active, mint, wall_clock
        self._kept: _Kept | None = None
        self._handle = OneRequest(self._reply, at_once=_MOST_AT_ONCE, timeout=_PATIENCE)

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
        active = self._active()
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
                    return 200, await self._kept_or(active, head.target, lambda: self._token(active, question))
                case "/v1/certificate":
                    return 200, await self._kept_or(active, b"certificate", lambda: self._certificate(active))
            return 404, {"error": "there are /v1/identity, /v1/token?audience=… and /v1/certificate"}
        except ValueError as error:
            return 400, {"error": f"the query is malformed: {error}"}
        except AteError as error:
            _log.info("an actor got no credential", actor_uid=active.uid, error=error.message)
            return _STATUS.get(type(error), 503), {"error": error.message}

    async def _kept_or(self, active: Active, question: bytes, ask: Callable[[], Any]) -> dict[str, Any]:
        """The kept answer while it is fresh. Another actor, or the same one awake again, starts with nothing."""
        if self._kept is None or self._kept.active is not active:
            self._kept = _Kept(active)
        kept = self._kept
        key = question.decode("latin-1")
        found, until = kept.answers.get(key, ({}, 0.0))
        now = self._wall_clock()
        if now < until:
            return found
        answer: dict[str, Any] = await ask()
        if self._active() is not active:
            raise FailedPrecondition("the actor has left this worker")
        kept.answers.pop(key, None)
        if len(kept.answers) >= _KEPT:
            del kept.answers[next(iter(kept.answers))]
        kept.answers[key] = (answer, now + (answer["expiresAt"] - now) * _FRESH)
        return answer

    async def _token(self, active: Active, question: dict[str, list[str]]) -> dict[str, Any]:
        unknown = set(question) - {"audience", "seconds"}
        if unknown:
            raise InvalidArgument(f"there is no {sorted(unknown)[0]!r}: give audience and, if need be, seconds")
        seconds = question.get("seconds", ["0"])[-1]
        if not seconds.isascii() or not seconds.isdecimal() or len(seconds) > 9:
            raise InvalidArgument(f"seconds: {seconds[:20]!r} is no number")
        answer = await self._mint.MintActorToken(
            node_pb2.MintActorTokenRequest(
                atespace=active.ref.atespace,
                actor_name=active.ref.name,
                actor_uid=active.uid,
                audience=question.get("audience", []),
                expiration_seconds=int(seconds),
            ),
            timeout=_PATIENCE,
        )
        return {"token": answer.token, "expiresAt": answer.expires_at_unix}

    async def _certificate(self, active: Active) -> dict[str, Any]:
        key = ec.generate_private_key(ec.SECP256R1())
        csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
        answer = await self._mint.MintActorOwnCertificate(
            node_pb2.MintActorOwnCertificateRequest(
                atespace=active.ref.atespace,
                actor_name=active.ref.name,
                actor_uid=active.uid,
                certificate_signing_request=csr.public_bytes(Encoding.DER),
            ),
            timeout=_PATIENCE,
        )
        chain = [x509.load_der_x509_certificate(der) for der in answer.certificates]
        return {
            "certificates": "".join(certificate.public_bytes(Encoding.PEM).decode() for certificate in chain),
            "privateKey": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode(),
            "trustBundle": answer.trust_bundle_pem,
            "expiresAt": int(chain[0].not_valid_after_utc.timestamp()),
        }


def listen() -> trio.SocketListener:
    """At the gateway's address of this network namespace, which is there only while an actor is active."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.setsockopt(socket.SOL_IP, socket.IP_FREEBIND if hasattr(socket, "IP_FREEBIND") else 15, 1)
    sock.bind((names.GATEWAY_ADDRESS, PORT))
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
