"""A control plane in one process, all real code, over nodes whose sandboxes are a model, under a virtual clock.

A `FakeNode` speaks AteomHerder. Its actors' memory is an integer; snapshots are entries of a shared dictionary. It can
be told to fail, to lose replies, or to be away.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import trio

from ate.api import actors, atespaces, provider, templates, workers
from ate.api.context import Context
from ate.api.golden import Golden
from ate.api.kinds import NODES
from ate.api.recovery import Recovery
from ate.api.timers import Timers
from ate.api.worker_cache import WorkerCache
from ate.api.workflows import resume, suspend
from ate.api.workflows.operations import Operations
from ate.errors import AteError, FailedPrecondition, NotFound, Unavailable
from ate.names import OPERATION_ID_METADATA, Ref, new_uid
from ate.proto import ateapi_pb2 as pb
from ate.proto import atelet_pb2 as node
from ate.proto import node_pb2
from ate.proto.atelet_grpc import AteomHerderBase, AteomHerderStub
from ate.rpc import Call, Server, unary
from ate.store import Key, open_sqlite
from tests.rpc_echo import memory_channel

IMAGE = "ate.local/x@sha256:" + "a" * 64


@dataclass
class Sandbox:
    actor_uid: str
    operation: str
    memory: int


@dataclass
class FakeNode(AteomHerderBase):
    """`snapshots` stands for object storage and is shared by all nodes: URI -> memory."""

    snapshots: dict[str, int]
    workers: dict[str, Sandbox] = field(default_factory=dict)
    local: dict[tuple[str, str], int] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    starts: int = 0
    checkpoints: int = 0
    delay: float = 0.05
    before: Callable[[str], None] = lambda what: None
    after: Callable[[str], None] = lambda what: None

    async def _start(self, request: node.RunRequest | node.RestoreRequest, call: Call, memory: int) -> None:
        self.before("start")
        operation = str(call.metadata[OPERATION_ID_METADATA])
        held = self.workers.get(request.target_ateom_uid)
        if held is not None:
            if held.actor_uid == request.actor_uid and held.operation == operation:
                return
            raise FailedPrecondition(f"worker holds {held.actor_uid}")
        await trio.sleep(self.delay)
        self.workers[request.target_ateom_uid] = Sandbox(request.actor_uid, operation, memory)
        self.starts += 1
        self.after("start")

    @unary
    async def Run(self, request: node.RunRequest, call: Call) -> node.RunResponse:
        await self._start(request, call, 0)
        return node.RunResponse()

    @unary
    async def Restore(self, request: node.RestoreRequest, call: Call) -> node.RestoreResponse:
        if request.type == node.CHECKPOINT_TYPE_LOCAL:
            memory = self.local.get((request.actor_uid, request.local_config.snapshot_name))
        else:
            memory = self.snapshots.get(request.external_config.snapshot_uri)
        if memory is None:
            raise NotFound("snapshot not found")
        await self._start(request, call, memory)
        return node.RestoreResponse()

    @unary
    async def Checkpoint(self, request: node.CheckpointRequest, call: Call) -> node.CheckpointResponse:
        return await self._checkpoint(request, call)

    async def _checkpoint(self, request: node.CheckpointRequest, call: Call) -> node.CheckpointResponse:
        self.before("checkpoint")
        operation = str(call.metadata[OPERATION_ID_METADATA])
        if operation in self.done:
            return node.CheckpointResponse()
        held = self.workers.get(request.target_ateom_uid)
        if held is None or held.actor_uid != request.actor_uid:
            raise FailedPrecondition("the actor does not run here")
        await trio.sleep(self.delay)
        if request.type == node.CHECKPOINT_TYPE_LOCAL:
            self.local[request.actor_uid, request.local_config.snapshot_name] = held.memory
        else:
            self.snapshots[request.external_config.snapshot_uri] = held.memory
        del self.workers[request.target_ateom_uid]
        self.done.add(operation)
        self.checkpoints += 1
        self.after("checkpoint")
        return node.CheckpointResponse()

    @unary
    async def UploadPausedCheckpoint(
        self, request: node.UploadPausedCheckpointRequest, call: Call
    ) -> node.UploadPausedCheckpointResponse:
        self.before("upload")
        memory = self.local[request.actor_uid, request.local_snapshot_name]
        self.snapshots[request.destination_snapshot_uri] = memory
        return node.UploadPausedCheckpointResponse()

    @unary
    async def Terminate(self, request: node.TerminateRequest, call: Call) -> node.TerminateResponse:
        self.before("terminate")
        for worker, held in list(self.workers.items()):
            if held.actor_uid == request.actor_uid:
                del self.workers[worker]
        return node.TerminateResponse()


@dataclass
class FakeNodes:
    """Stands for `ate.api.nodes.Nodes`."""

    stubs: dict[str, AteomHerderStub]

    async def herder(self, name: str) -> AteomHerderStub:
        if name not in self.stubs:
            raise Unavailable(f"node {name} is away")
        return self.stubs[name]


@dataclass
class Objects:
    """Stands for `ate.objects`, on the shared dictionary."""

    snapshots: dict[str, int]

    async def delete_prefix(self, uri: str) -> None:
        for key in [key for key in self.snapshots if key == uri or key.startswith(uri + "/")]:
            del self.snapshots[key]

    async def copy_prefix(self, source_uri: str, target_uri: str) -> None:
        if source_uri not in self.snapshots:
            raise NotFound(source_uri)
        self.snapshots[target_uri] = self.snapshots[source_uri]

    async def delete_other_snapshots(self, prefix_uri: str, keep_uri: str) -> None:
        for key in [key for key in self.snapshots if key.startswith(prefix_uri + "/") and key != keep_uri]:
            del self.snapshots[key]


@dataclass
class Cluster:
    """One control plane with `node` and its workers."""

    ctx: Context
    node: FakeNode
    snapshots: dict[str, int]

    async def add_worker(self, **fields: object) -> str:
        uid = new_uid()
        worker = pb.Worker(
            metadata=pb.ResourceMetadata(name=uid),
            worker_pod_uid=uid,
            node_name="n1",
            ips=["127.0.0.9"],
            sandbox_class="gvisor",
            epoch=1,
            **fields,  # type: ignore[arg-type]
        )
        await workers.create(self.ctx, pb.CreateWorkerRequest(worker=worker))
        return uid

    async def add_node(self) -> None:
        """The node's agent makes itself known now."""
        heartbeat = node_pb2.Node(node_name="n1", address="127.0.0.9:1", last_seen_unix_nano=int(_wall_clock() * 1e9))
        await self.ctx.store.transact(lambda tx: tx.insert(NODES, Key("", "n1"), heartbeat))

    async def add_template(self, name: str = "t", **fields: object) -> pb.ActorTemplate:
        return await templates.create(self.ctx, pb.CreateActorTemplateRequest(actor_template=template(name, **fields)))

    async def add_actor(self, name: str, template_name: str = "t") -> pb.Actor:
        actor = pb.Actor(
            metadata=pb.ResourceMetadata(atespace="demo", name=name),
            actor_template=pb.ObjectRef(atespace="demo", name=template_name),
        )
        return await actors.create(self.ctx, pb.CreateActorRequest(actor=actor))

    async def resume(self, name: str, **options: bool) -> pb.Actor:
        actor, _ = await resume.resume(self.ctx, Ref("demo", name), **options)
        return actor

    async def suspend(self, name: str) -> pb.Actor:
        return await suspend.suspend(self.ctx, Ref("demo", name))

    async def get(self, name: str) -> pb.Actor:
        return await actors.get(self.ctx, pb.GetActorRequest(actor=pb.ObjectRef(atespace="demo", name=name)))

    def memory(self, actor: pb.Actor) -> Sandbox:
        """The sandbox the actor runs in, where its status says it is."""
        held = self.node.workers[actor.status.worker_assignment.worker.name]
        assert held.actor_uid == actor.metadata.uid, "another actor runs where this one should"
        return held

    async def until(self, name: str, state: pb.ActorState, seconds: float = 120) -> pb.Actor:
        with trio.fail_after(seconds):
            while True:
                actor = await self.get(name)
                if actor.status.state == state:
                    return actor
                await trio.sleep(0.1)


def template(name: str = "t", **fields: object) -> pb.ActorTemplate:
    value = pb.ActorTemplate(
        metadata=pb.ResourceMetadata(atespace="demo", name=name),
        containers=[pb.Container(name="c", image=IMAGE, readyz=pb.ContainerReadyz(http_get=pb.HTTPGetAction(port=80)))],
        sandbox_config=pb.SandboxConfig(sandbox_class=pb.SANDBOX_CLASS_GVISOR, config_name="gvisor-default"),
        snapshots_config=pb.SnapshotsConfig(storage_location="file:///snapshots"),
    )
    value.MergeFrom(pb.ActorTemplate(**fields))  # type: ignore[arg-type]
    return value


def _wall_clock() -> float:
    return 1_700_000_000 + trio.current_time()


@asynccontextmanager
async def open_cluster(*, golden: bool = False, recover: bool = True) -> AsyncIterator[Cluster]:
    """A fresh control plane on an in-memory store, driven by trio's clock alone."""
    snapshots: dict[str, int] = {}
    fake = FakeNode(snapshots)
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(open_sqlite(":memory:", now=_wall_clock, threaded=False))
        channel = await stack.enter_async_context(memory_channel(Server([fake])))
        nursery = await stack.enter_async_context(trio.open_nursery())
        cache = WorkerCache(store)
        nodes = FakeNodes({"n1": AteomHerderStub(channel)})
        ctx = Context(
            store,
            nodes,  # type: ignore[arg-type]
            Objects(snapshots),
            cache,
            Operations(store, nursery, "test"),
            wall_clock=_wall_clock,
        )
        await atespaces.ensure_golden(ctx)
        nursery.start_soon(cache.run)
        if golden:
            nursery.start_soon(Golden(ctx, nursery).run)
        if recover:
            nursery.start_soon(Recovery(ctx).run)
            nursery.start_soon(Timers(ctx).run)
        await cache.ready.wait()
        demo = pb.Atespace(metadata=pb.ResourceMetadata(name="demo"))
        await atespaces.create(ctx, pb.CreateAtespaceRequest(atespace=demo))
        config = pb.SandboxRuntimeConfig(
            metadata=pb.ResourceMetadata(name="gvisor-default"), spec=pb.SandboxRuntimeConfigSpec(pause_image=IMAGE)
        )
        await provider.create_config(ctx, pb.CreateSandboxConfigRequest(sandbox_config=config))
        yield Cluster(ctx, fake, snapshots)
        nursery.cancel_scope.cancel()


__all__ = ["AteError", "Cluster", "FakeNode", "open_cluster", "template"]
