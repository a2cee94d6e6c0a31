"""The OpenID provider: what others need to verify actors' tokens, at the issuer's well-known places, over HTTPS.

Anybody may read it; it holds public keys only. During a rotation both keys are there. The certificate is the one given,
or one of the platform's own CA, which then has to be made known to whoever verifies. Part of the broker.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from ate.errors import FailedPrecondition
from ate.http_framing import RequestHead
from ate.http_once import JSON, OneRequest, Reply
from ate.identity.jwt_pool import JwtPool
from ate.log import Logger

log = Logger("ate.identity")

DISCOVERY: Final = "/.well-known/openid-configuration"
JWKS: Final = "/openid/v1/jwks"
_CACHED_SECONDS: Final = 300
"""How long others may keep what they read: far less than the overlap of a rotation."""


@dataclass(frozen=True)
class OpenIdConfig:
    """`certificate`: PEM file of key and chain; None: one of our own for the issuer's host."""

    listen_host: str
    listen_port: int
    issuer: str
    certificate: Path | None = None


def documents(issuer: str, pool: JwtPool) -> dict[str, dict[str, object]]:
    """Path -> what is there."""
    algorithms = sorted({authority.algorithm for authority in pool.authorities})
    base = issuer.rstrip("/")
    return {
        DISCOVERY: {
            "issuer": issuer,
            "jwks_uri": base + JWKS,
            "response_types_supported": ["id_token"],
            "subject_types_supported": ["public"],
            "id_token_signing_alg_values_supported": algorithms,
            "claims_supported": ["iss", "sub", "aud", "iat", "nbf", "exp", "jti", "ate.dev"],
        },
        JWKS: pool.jwks(),
    }


async def serve_openid(
    config: OpenIdConfig,
    pool: Callable[[], JwtPool],
    context: Callable[[], ssl.SSLContext],
    *,
    task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serves until cancelled; `task_status` gets the port. `pool` gives what is published now."""

    async def answer(request: RequestHead) -> Reply:
        if request.method not in (b"GET", b"HEAD"):
            return Reply(405, b"only GET is known here\n")
        found = documents(config.issuer, pool()).get(request.target.split(b"?")[0].decode("latin-1"))
        if found is None:
            return Reply(404, f"there are {DISCOVERY} and {JWKS}\n".encode())
        body = b"" if request.method == b"HEAD" else json.dumps(found).encode()
        cached = b"public, max-age=%d" % _CACHED_SECONDS
        return Reply(200, body, JSON, ((b"Cache-Control", cached),))

    handle = OneRequest(answer)

    async def secured(stream: trio.SocketStream) -> None:
        try:
            await handle(trio.SSLStream(stream, context(), server_side=True, https_compatible=True))
        except Exception as error:
            log.error("the OpenID provider failed", exc=error)

    try:
        listeners = await trio.open_tcp_listeners(config.listen_port, host=config.listen_host)
    except OSError as error:
        raise FailedPrecondition(
            f"--openid-listen {config.listen_host}:{config.listen_port}: {error.strerror or error}"
        )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, secured, listeners)
        task_status.started(listeners[0].socket.getsockname()[1])


def given_context(path: Path) -> ssl.SSLContext:
    """A server's context of a PEM file. FailedPrecondition when it is unusable."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(path)
    except (OSError, ssl.SSLError) as error:
        raise FailedPrecondition(f"--openid-certificate {path}: {error}")
    return context
