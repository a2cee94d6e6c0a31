"""The smaller services of the api role: Provider, WorkerService, NodeRegistry, ActorLogs, Debug, ActorIdentity."""

from __future__ import annotations

import re

from ate import names
from ate.api import provider, workers
from ate.api.access.gate import is_from, node_of
from ate.api.access.table import Machine
from ate.api.context import Context
from ate.api.control import checked
from ate.api.kinds import ACTORS, ASSIGNMENTS, TEMPLATES, WORKERS, key_of
from ate.api.minting import Minter
from ate.api.nodes import HEARTBEAT_SECONDS
from ate.api.validation import resources as rules
from ate.api.validation.problems import Problems, reject_unknown_fields
from ate.api.workflows import steps, suspend
from ate.errors import NotFound, PermissionDenied
from ate.identity.actors import ATUNNEL
from ate.proto import ateapi_pb2 as pb
from ate.proto import node_pb2
from ate.proto.ateapi_grpc import ActorIdentityBase, DebugBase, ProviderBase, WorkerServiceBase
from ate.proto.node_grpc import ActorCrashesBase, ActorLogsBase, ActorSvidsBase, ActorTrustBase, NodeRegistryBase
from ate.rpc import Call, server_streaming
from ate.store import Key

_PORT = re.compile(r"[1-9][0-9]{0,4}")


class Provider(ProviderBase):
    """Worker pools and sandbox runtimes."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    @checked
    async def CreateWorkerPool(self, request: pb.CreateWorkerPoolRequest, call: Call) -> pb.WorkerPool:
        return await provider.create_pool(self._ctx, request)

    @checked
    async def GetWorkerPool(self, request: pb.GetWorkerPoolRequest, call: Call) -> pb.WorkerPool:
        return await provider.get_pool(self._ctx, request)

    @checked
    async def UpdateWorkerPool(self, request: pb.UpdateWorkerPoolRequest, call: Call) -> pb.WorkerPool:
        may = is_from(call, Machine.CONTROLLER)
        return await provider.update_pool(self._ctx, request, may_set_status=may)

    @checked
    async def DeleteWorkerPool(self, request: pb.DeleteWorkerPoolRequest, call: Call) -> pb.WorkerPool:
        return await provider.delete_pool(self._ctx, request)

    @checked
    async def ListWorkerPools(self, request: pb.ListWorkerPoolsRequest, call: Call) -> pb.ListWorkerPoolsResponse:
        return await provider.list_pools(self._ctx, request)

    @checked
    async def CreateSandboxConfig(self, request: pb.CreateSandboxConfigRequest, call: Call) -> pb.SandboxRuntimeConfig:
        return await provider.create_config(self._ctx, request)

    @checked
    async def GetSandboxConfig(self, request: pb.GetSandboxConfigRequest, call: Call) -> pb.SandboxRuntimeConfig:
        return await provider.get_config(self._ctx, request)

    @checked
    async def UpdateSandboxConfig(self, request: pb.UpdateSandboxConfigRequest, call: Call) -> pb.SandboxRuntimeConfig:
        return await provider.update_config(self._ctx, request)

    @checked
    async def DeleteSandboxConfig(self, request: pb.DeleteSandboxConfigRequest, call: Call) -> pb.SandboxRuntimeConfig:
        return await provider.delete_config(self._ctx, request)

    @checked
    async def ListSandboxConfigs(
        self, request: pb.ListSandboxConfigsRequest, call: Call
    ) -> pb.ListSandboxConfigsResponse:
        return await provider.list_configs(self._ctx, request)


class WorkerService(WorkerServiceBase):
    """Calls of the node agents, each confined to its own node."""

    def __init__(self, ctx: Context, minter: Minter) -> None:
        self._ctx, self._minter = ctx, minter

    @checked
    async def SetWorkerCapacity(self, request: pb.SetWorkerCapacityRequest, call: Call) -> pb.SetWorkerCapacityResponse:
        worker = await workers.set_capacity(self._ctx, request, node_of(call))
        return pb.SetWorkerCapacityResponse(worker=worker)

    @checked
    async def RequestActorSuspend(
        self, request: pb.RequestActorSuspendRequest, call: Call
    ) -> pb.RequestActorSuspendResponse:
        problems = Problems()
        rules.ref(problems, "worker", request.HasField("worker"), request.worker, scoped=False)
        rules.ref(problems, "actor", request.HasField("actor"), request.actor, scoped=True)
        problems.uuid("actor_uid", request.actor_uid)
        problems.raise_if_any()
        name, ref = request.worker.name, names.Ref(request.actor.atespace, request.actor.name)
        actor = await steps.load(self._ctx, ref, uid=request.actor_uid)
        if actor.value.status.worker_assignment.node_name != node_of(call):
            raise NotFound(f"worker {name} does not hold actor {ref}")
        suspended = await suspend.suspend(self._ctx, ref, worker=name, uid=request.actor_uid)
        return pb.RequestActorSuspendResponse(actor=suspended)

    @checked
    async def MintAteomActorCertificate(
        self, request: pb.MintAteomActorCertificateRequest, call: Call
    ) -> pb.MintAteomActorCertificateResponse:
        chain = await self._minter.actor_certificate(request, node_of(call), ATUNNEL)
        return pb.MintAteomActorCertificateResponse(actor_certificates=chain)


class ActorIdentity(ActorIdentityBase):
    """The older form of the calls for actors' credentials."""

    def __init__(self, minter: Minter) -> None:
        self._minter = minter

    @checked
    async def MintJWT(self, request: pb.MintJWTRequest, call: Call) -> pb.MintJWTResponse:
        return await self._minter.jwt(request, node_of(call))

    @checked
    async def MintCert(self, request: pb.MintCertRequest, call: Call) -> pb.MintCertResponse:
        return pb.MintCertResponse(actor_certificates=await self._minter.certificate(request, node_of(call)))


class ActorTrust(ActorTrustBase):
    """What those trust who verify actors' credentials."""

    def __init__(self, minter: Minter) -> None:
        self._minter = minter

    @checked
    async def GetActorTrust(self, request: node_pb2.GetActorTrustRequest, call: Call) -> node_pb2.GetActorTrustResponse:
        return self._minter.trust()


class ActorSvids(ActorSvidsBase):
    """Tokens for the SPIFFE Workload API in sandboxes."""

    def __init__(self, minter: Minter) -> None:
        self._minter = minter

    @checked
    async def MintJwtSvid(self, request: node_pb2.MintActorTokenRequest, call: Call) -> node_pb2.MintActorTokenResponse:
        return await self._minter.jwt_svid(request, node_of(call))


class NodeRegistry(NodeRegistryBase):
    """Where node agents make themselves known."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    @checked
    async def RegisterNode(self, request: node_pb2.RegisterNodeRequest, call: Call) -> node_pb2.RegisterNodeResponse:
        problems = Problems()
        problems.long("node_name", request.node_name)
        host, _, port = request.address.rpartition(":")
        usable = host != "" and _PORT.fullmatch(port) is not None and int(port) <= 65535
        problems.check("address", usable, f"{request.address!r} is not host:port")
        problems.check("boot_id", request.boot_id != "", "is required")
        problems.raise_if_any()
        if request.node_name != node_of(call):
            raise PermissionDenied(f"the caller speaks for node {node_of(call)}, not {request.node_name}")
        cpu, changed = await self._ctx.cpus.register(self._ctx.store, request.node_name, request.cpu_features)
        node = node_pb2.Node(
            node_name=request.node_name,
            address=request.address,
            boot_id=request.boot_id,
            last_seen_unix_nano=int(self._ctx.wall_clock() * 1e9),
            cpu_features_id=cpu,
        )
        await self._ctx.nodes.register(node)
        if changed:
            self._ctx.workers.node_changed(request.node_name)
        answer = node_pb2.RegisterNodeResponse(heartbeat_seconds=HEARTBEAT_SECONDS)
        for local in request.actors:
            row = await self._ctx.store.get(ACTORS, Key(local.atespace, local.name))
            if row is None or row.uid != local.uid:
                answer.deleted_actor_uids.append(local.uid)
            elif not _belongs(row.value, request.node_name):
                answer.departed_actor_uids.append(local.uid)
        return answer


class ActorCrashes(ActorCrashesBase):
    """What node agents tell of sandboxes that ended by themselves."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    @checked
    async def ReportActorCrash(
        self, request: node_pb2.ReportActorCrashRequest, call: Call
    ) -> node_pb2.ReportActorCrashResponse:
        problems = Problems()
        problems.uuid("actor_uid", request.actor_uid)
        problems.length("reason", request.reason, 4096, required=True)
        problems.raise_if_any()
        claims = await self._ctx.store.scan_owned(ASSIGNMENTS, request.actor_uid, limit=1)
        worker = await self._ctx.store.get(WORKERS, Key("", claims[0].key.scope)) if claims else None
        if worker is None or worker.value.node_name != node_of(call):
            raise NotFound(f"no worker of node {node_of(call)} holds actor {request.actor_uid}")
        self._ctx.last_words.keep(request.actor_uid, request.reason)
        return node_pb2.ReportActorCrashResponse()


def _belongs(actor: pb.Actor, node_name: str) -> bool:
    """Whether the actor is placed on the node or keeps its paused state there."""
    status = actor.status
    here = status.worker_assignment.node_name == node_name
    return here or node_name in status.local_snapshot.node_vms_with_local_snapshots


class ActorLogs(ActorLogsBase):
    """What actors printed, relayed from the node that keeps it: where the actor runs, or last ran."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    @server_streaming
    async def ReadActorLogs(self, request: node_pb2.ReadActorLogsRequest, call: Call) -> None:
        reject_unknown_fields(request)
        problems = Problems()
        problems.short("atespace", request.atespace)
        problems.short("actor_name", request.actor_name)
        problems.raise_if_any()
        ref = names.Ref(request.atespace, request.actor_name)
        actor = await steps.load(self._ctx, ref)
        request.actor_uid = actor.uid
        template = await self._ctx.store.get(TEMPLATES, key_of(actor.value.actor_template))
        if request.container and template is not None:
            known = [container.name for container in template.value.containers]
            if request.container not in known:
                raise NotFound(f"actor {ref} has no container {request.container!r}, only {', '.join(known)}")
        assigned = actor.value.status.worker_assignment.node_name
        nodes = [assigned] if assigned else sorted(await self._ctx.nodes.all())
        for node in nodes:
            stub = await self._ctx.nodes.logs(node)
            async with stub.ReadActorLogs.open() as stream:
                await stream.send_message(request, end=True)
                async for line in stream:
                    await call.send(line)


class Debug(DebugBase):
    """Test helpers, served only where they were asked for."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx

    @checked
    async def DebugClear(self, request: pb.DebugClearRequest, call: Call) -> pb.DebugClearResponse:
        await self._ctx.store.clear()
        return pb.DebugClearResponse()
