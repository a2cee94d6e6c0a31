"""The SPIFFE Workload API for the actor active in a worker: gRPC over TCP at the sandbox's gateway, port 8081.

Stock SPIFFE libraries find it by SPIFFE_ENDPOINT_SOCKET=tcp://169.254.17.1:8081. As the standard demands, every call
carries the metadata `workload.spiffe.io: true`, which no browser and no URL fetcher sends. Streams give a fresh SVID at
half the life of the last; they end when the actor sleeps, and the library connects again when it wakes.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from google.protobuf import json_format

from ate.errors import InvalidArgument, PermissionDenied, Unavailable
from ate.node.credentials import Credentials
from ate.node.worker import Active
from ate.proto import spiffe_workload_pb2 as pb
from ate.proto.spiffe_workload_grpc import SpiffeWorkloadAPIBase
from ate.rpc import Call, server_streaming, unary

PORT: Final = 8081
HEADER: Final = "workload.spiffe.io"
_LOOK: Final = 2.0
"""Seconds between looks whether the actor is still the same and its SVID still fresh."""
_BUNDLES: Final = 60.0
"""Seconds between looks at who is trusted."""


async def demand_header(call: Call, proceed: Callable[[], Awaitable[None]]) -> None:
    """An interceptor: InvalidArgument without the metadata of the standard, as it says."""
    if call.metadata.getall(HEADER, []) != ["true"]:
        raise InvalidArgument(f"security header missing from request: {HEADER}: true")
    await proceed()


class WorkloadApi(SpiffeWorkloadAPIBase):
    """See the module."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def _active(self) -> Active:
        active = self._credentials.active()
        if active is None:
            raise PermissionDenied("no identity issued: no actor is active here")
        return active

    @server_streaming
    async def FetchX509SVID(self, request: pb.X509SVIDRequest, call: Call) -> None:
        active = self._active()
        sent = None
        while True:
            certificate = await self._credentials.certificate(active)
            if certificate is not sent:
                sent = certificate
                svid = pb.X509SVID(
                    spiffe_id=certificate.spiffe_id,
                    x509_svid=b"".join(each.public_bytes(Encoding.DER) for each in certificate.chain),
                    x509_svid_key=certificate.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()),
                    bundle=b"".join(each.public_bytes(Encoding.DER) for each in certificate.bundle),
                )
                await call.send(pb.X509SVIDResponse(svids=[svid]))
            await self._pause(active, _LOOK)

    @server_streaming
    async def FetchX509Bundles(self, request: pb.X509BundlesRequest, call: Call) -> None:
        async def bundles() -> pb.X509BundlesResponse:
            trust = await self._credentials.trust()
            certificates = x509.load_pem_x509_certificates(trust.trust_bundle_pem.encode())
            ders = b"".join(each.public_bytes(Encoding.DER) for each in certificates)
            return pb.X509BundlesResponse(bundles={f"spiffe://{trust.trust_domain}": ders})

        await self._changes(bundles, call)

    @unary
    async def FetchJWTSVID(self, request: pb.JWTSVIDRequest, call: Call) -> pb.JWTSVIDResponse:
        active = self._active()
        if not request.audience:
            raise InvalidArgument("audience must be specified")
        own = (await self._credentials.certificate(active)).spiffe_id
        if request.spiffe_id not in ("", own):
            raise PermissionDenied(f"no identity issued: this actor is {own}")
        token = await self._credentials.token(active, request.audience, spiffe=True)
        return pb.JWTSVIDResponse(svids=[pb.JWTSVID(spiffe_id=own, svid=token.text)])

    @server_streaming
    async def FetchJWTBundles(self, request: pb.JWTBundlesRequest, call: Call) -> None:
        async def bundles() -> pb.JWTBundlesResponse:
            trust = await self._credentials.trust()
            return pb.JWTBundlesResponse(bundles={f"spiffe://{trust.trust_domain}": trust.jwks.encode()})

        await self._changes(bundles, call)

    @unary
    async def ValidateJWTSVID(self, request: pb.ValidateJWTSVIDRequest, call: Call) -> pb.ValidateJWTSVIDResponse:
        self._active()
        if not request.audience or not request.svid:
            raise InvalidArgument("audience and svid must be specified")
        trust = await self._credentials.trust()
        claims = _verified(request.svid, request.audience, trust.jwks)
        subject = str(claims.get("sub", ""))
        if not subject.startswith(f"spiffe://{trust.trust_domain}/"):
            raise InvalidArgument("the token is no JWT-SVID of this trust domain")
        answer = pb.ValidateJWTSVIDResponse(spiffe_id=subject)
        json_format.ParseDict(claims, answer.claims)
        return answer

    async def _changes(self, read: Callable[[], Awaitable[Any]], call: Call) -> None:
        """Sends what `read` gives, and again whenever it is something else."""
        active, sent = self._active(), None
        while True:
            now = await read()
            if now != sent:
                sent = now
                await call.send(now)
            await self._pause(active, _BUNDLES)

    async def _pause(self, active: Active, seconds: float) -> None:
        """Unavailable once another actor is active, or none: the stream was for this one."""
        end = trio.current_time() + seconds
        while trio.current_time() < end:
            if self._credentials.active() is not active:
                raise Unavailable("the actor has left this worker")
            await trio.sleep(min(_LOOK, seconds))


def _verified(token: str, audience: str, jwks: str) -> dict[str, Any]:
    """The claims of a good token. InvalidArgument for any other."""
    import jwt

    try:
        kid = jwt.get_unverified_header(token).get("kid", "")
        key = jwt.PyJWKSet.from_dict(json.loads(jwks))[kid]
        claims: dict[str, Any] = jwt.decode(token, key, algorithms=[key.algorithm_name], audience=audience)
        return claims
    except (jwt.PyJWTError, KeyError) as error:
        raise InvalidArgument(f"the token does not verify: {error}")
