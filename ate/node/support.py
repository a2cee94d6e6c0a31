"""AteomSupport: what a worker asks of its node's agent. The agent's service, and the worker's side of it.

The socket lies in the node's folder and speaks mutual TLS: the agent learns from the certificate which worker calls, so
that a worker can speak for itself only. The agent passes the calls on to the control plane.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from ate import names
from ate.errors import AteError, NotFound, PermissionDenied
from ate.identity import spiffe
from ate.identity.tls import Identity
from ate.log import Logger
from ate.node.local_state import RUNNING, STARTING, LocalState
from ate.node.worker import Worker
from ate.proto import ateapi_pb2 as api
from ate.proto import atelet_pb2 as pb
from ate.proto import node_pb2
from ate.proto.ateapi_grpc import ControlStub, WorkerServiceStub
from ate.proto.atelet_grpc import AteomSupportBase, AteomSupportStub
from ate.proto.node_grpc import ActorCrashesBase, ActorCrashesStub, ActorCredentialsBase, ActorSvidsStub, ActorTrustStub
from ate.rpc import Call, Channel, IServable, Peer, RpcListener, Server, open_unix_listener, unary

log = Logger("ate.node")

SOCKET = "ateom-support.sock"
SUSPEND_TIMEOUT = 600.0
_RETRY_FIRST, _RETRY_MOST = 0.25, 5.0


class Support(AteomSupportBase):
    """The agent's side."""

    def __init__(self, workers: WorkerServiceStub, state: LocalState, node_name: str, trust_domain: str) -> None:
        self._workers, self._state, self._node_name = workers, state, node_name
        self._ateom = names.service_account_id(trust_domain, names.SERVICE_ACCOUNTS["ateom"])

    @unary
    async def SetWorkerCapacity(self, request: pb.SetWorkerCapacityRequest, call: Call) -> pb.SetWorkerCapacityResponse:
        limits = [api.Limits(name=x.name, quantity=x.quantity) for x in request.capacity.resources.limits]
        capacity = api.WorkerResources(actors=request.capacity.actors, resources=api.Resources(limits=limits))
        worker = api.ObjectRef(name=self.worker_of(call))
        await self._workers.SetWorkerCapacity(
            api.SetWorkerCapacityRequest(worker=worker, capacity=capacity), timeout=30
        )
        return pb.SetWorkerCapacityResponse()

    @unary
    async def RequestActorSuspend(
        self, request: pb.RequestActorSuspendRequest, call: Call
    ) -> pb.RequestActorSuspendResponse:
        await self._workers.RequestActorSuspend(
            api.RequestActorSuspendRequest(
                worker=api.ObjectRef(name=self.worker_of(call)),
                actor=api.ObjectRef(atespace=request.actor_atespace, name=request.actor_name),
                actor_uid=request.actor_uid,
            ),
            timeout=SUSPEND_TIMEOUT,
        )
        return pb.RequestActorSuspendResponse()

    @unary
    async def MintActorCertificate(
        self, request: pb.MintActorCertificateRequest, call: Call
    ) -> pb.MintActorCertificateResponse:
        await self.holder_of(call, request.actor_uid)
        answer = await self._workers.MintAteomActorCertificate(
            api.MintAteomActorCertificateRequest(
                actor=api.ObjectRef(atespace=request.actor_atespace, name=request.actor_name),
                actor_uid=request.actor_uid,
                certificate_signing_request=request.certificate_signing_request,
            ),
            timeout=30,
        )
        return pb.MintActorCertificateResponse(actor_certificates=answer.actor_certificates)

    def worker_of(self, call: Call) -> str:
        """The worker that calls; PermissionDenied for anybody else and for workers of other nodes."""
        caller = spiffe.caller_of(call.peer.certificate)
        if caller.spiffe_id != self._ateom or caller.pod is None or not caller.pod.pod_uid:
            raise PermissionDenied(f"{caller.spiffe_id} is no worker")
        if caller.pod.node_name != self._node_name:
            raise PermissionDenied(f"worker {caller.pod.pod_uid} is of node {caller.pod.node_name}")
        return caller.pod.pod_uid

    async def holder_of(self, call: Call, actor_uid: str) -> None:
        """PermissionDenied unless the calling worker runs the actor, as far as this node's agent knows."""
        worker = self.worker_of(call)
        known = await self._state.get(actor_uid)
        if known is None or known.worker_uid != worker or known.phase not in (STARTING, RUNNING):
            log.warning("a worker asked for what is not its own", worker=worker, actor_uid=actor_uid)
            raise PermissionDenied("permission denied")


class Credentials(ActorCredentialsBase):
    """Tokens and certificates that actors ask their worker for, passed on for those it runs."""

    def __init__(self, support: Support, channel: Channel) -> None:
        """`channel` leads to the control plane."""
        self._support, self._control = support, ControlStub(channel)
        self._trust, self._svids = ActorTrustStub(channel), ActorSvidsStub(channel)

    @unary
    async def MintActorToken(
        self, request: node_pb2.MintActorTokenRequest, call: Call
    ) -> node_pb2.MintActorTokenResponse:
        await self._support.holder_of(call, request.actor_uid)
        if request.spiffe:
            return await self._svids.MintJwtSvid(request, timeout=30)
        answer = await self._control.MintActorJWT(
            api.MintActorJWTRequest(
                audience=request.audience,
                actor=api.ObjectRef(atespace=request.atespace, name=request.actor_name),
                actor_uid=request.actor_uid,
                expiration_seconds=request.expiration_seconds,
            ),
            timeout=30,
        )
        return node_pb2.MintActorTokenResponse(token=answer.actor_jwt, expires_at_unix=answer.expires_at.seconds)

    @unary
    async def GetTrust(self, request: node_pb2.GetActorTrustRequest, call: Call) -> node_pb2.GetActorTrustResponse:
        self._support.worker_of(call)
        return await self._trust.GetActorTrust(request, timeout=30)

    @unary
    async def MintActorOwnCertificate(
        self, request: node_pb2.MintActorOwnCertificateRequest, call: Call
    ) -> node_pb2.MintActorOwnCertificateResponse:
        await self._support.holder_of(call, request.actor_uid)
        answer = await self._control.MintActorCertificate(
            api.MintActorCertificateRequest(
                actor=api.ObjectRef(atespace=request.atespace, name=request.actor_name),
                actor_uid=request.actor_uid,
                certificate_signing_request=request.certificate_signing_request,
            ),
            timeout=30,
        )
        trust = await self._trust.GetActorTrust(node_pb2.GetActorTrustRequest(), timeout=30)
        return node_pb2.MintActorOwnCertificateResponse(
            certificates=answer.actor_certificates, trust_bundle_pem=trust.trust_bundle_pem
        )


class Crashes(ActorCrashesBase):
    """The agent's side of what workers tell of sandboxes that ended by themselves."""

    def __init__(self, support: Support, api_side: ActorCrashesStub) -> None:
        self._support, self._api = support, api_side

    @unary
    async def ReportActorCrash(
        self, request: node_pb2.ReportActorCrashRequest, call: Call
    ) -> node_pb2.ReportActorCrashResponse:
        self._support.worker_of(call)
        await self._api.ReportActorCrash(request, timeout=10)
        return node_pb2.ReportActorCrashResponse()


async def open_support(root: Path, identity: Identity, *services: IServable) -> tuple[Server, RpcListener]:
    """The agent's server for its workers, and where it listens."""
    return Server(list(services)), await open_unix_listener(root / SOCKET, mode=0o600, tls=identity)


def support_channel(root: Path, identity: Identity, trust_domain: str, node_name: str) -> Channel:
    """A worker's channel to its node's agent, which must prove that it is that."""
    atelet = names.service_account_id(trust_domain, names.SERVICE_ACCOUNTS["atelet"])
    check = spiffe.demand({atelet}, node_name=node_name)

    def verify(peer: Peer) -> None:
        check(peer.certificate)

    return Channel.unix(root / SOCKET, tls=identity, verify_peer=verify)


async def report_capacity(channel: Channel, *, cpu_milli: int, memory_bytes: int) -> None:
    """Tells what this worker has room for, as soon as the control plane knows the worker. 0: unconstrained."""
    limits = [("cpu", f"{cpu_milli}m", cpu_milli), ("memory", str(memory_bytes), memory_bytes)]
    resources = pb.Resources(limits=[pb.Limits(name=name, quantity=text) for name, text, amount in limits if amount])
    request = pb.SetWorkerCapacityRequest(capacity=pb.WorkerResources(actors=1, resources=resources))
    stub = AteomSupportStub(channel)
    await _until_done("capacity not reported yet", lambda: stub.SetWorkerCapacity(request, timeout=30))


async def suspend_before_the_end(channel: Channel, worker: Worker, stopping: trio.Event) -> None:
    """Once the worker is told to stop, has its actor put to sleep instead of letting it die with the worker."""
    await stopping.wait()
    active = worker.active
    if active is None:
        return
    request = pb.RequestActorSuspendRequest(
        actor_atespace=active.ref.atespace, actor_name=active.ref.name, actor_uid=active.uid
    )
    stub = AteomSupportStub(channel)

    async def ask() -> None:
        try:
            await stub.RequestActorSuspend(request, timeout=SUSPEND_TIMEOUT)
        except NotFound:
            log.info("the actor has left this worker already", actor_uid=active.uid)

    await _until_done("the actor is not asleep yet", ask)


async def report_crash(channel: Channel, actor_uid: str, reason: str) -> None:
    """Tells why the actor ended, if anybody listens: the control plane learns that it ended in any case."""
    request = node_pb2.ReportActorCrashRequest(actor_uid=actor_uid, reason=reason[:4096])
    try:
        await ActorCrashesStub(channel).ReportActorCrash(request, timeout=3)
    except AteError as error:
        log.warning("the reason of a crash was not told", actor_uid=actor_uid, error=error.message)


async def _until_done(what: str, ask: Callable[[], Awaitable[object]]) -> None:
    pause = _RETRY_FIRST
    while True:
        try:
            await ask()
            return
        except AteError as error:
            log.info(what, error=error.message)
        await trio.sleep(pause)
        pause = min(pause * 2, _RETRY_MOST)
