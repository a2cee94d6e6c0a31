"""Workers as resources, and what their node says of them (WorkerService)."""

from __future__ import annotations

from ate.api import paging
from ate.api.context import Context
from ate.api.kinds import ASSIGNMENTS, WORKERS
from ate.api.validation import resources as rules
from ate.api.validation.problems import Problems
from ate.api.workflows import steps
from ate.api.workflows import workers as workflows
from ate.errors import NotFound
from ate.proto import ateapi_pb2 as pb
from ate.store import Key, Row, Tx

_FIXED = (
    "worker_namespace",
    "worker_pool",
    "worker_pod",
    "worker_pod_uid",
    "node_name",
    "ips",
    "sandbox_class",
)


def name_of(present: bool, value: pb.ObjectRef, *options: pb.DeleteOptions) -> str:
    """A checked worker reference of a request."""
    problems = Problems()
    rules.ref(problems, "worker", present, value, scoped=False)
    for option in options:
        rules.delete_options(problems, "options", option)
    problems.raise_if_any()
    return value.name


async def create(ctx: Context, request: pb.CreateWorkerRequest) -> pb.Worker:
    problems = Problems()
    rules.worker(problems, "worker", request.worker)
    problems.raise_if_any()
    worker = pb.Worker()
    worker.CopyFrom(request.worker)
    worker.metadata.CopyFrom(pb.ResourceMetadata(name=request.worker.metadata.name))
    worker.status.CopyFrom(pb.WorkerStatus(state=pb.WORKER_STATE_ACTIVE, observed_epoch=worker.epoch))
    row = await ctx.store.transact(lambda tx: tx.insert(WORKERS, Key("", worker.metadata.name), worker))
    ctx.workers.apply(row)
    return row.value


async def _load(ctx: Context, name: str) -> Row[pb.Worker]:
    row = await ctx.store.get(WORKERS, Key("", name))
    if row is None:
        raise NotFound(f"worker {name} not found")
    return row


async def get(ctx: Context, request: pb.GetWorkerRequest) -> pb.Worker:
    return (await _load(ctx, name_of(request.HasField("worker"), request.worker))).value


async def update(ctx: Context, request: pb.UpdateWorkerRequest) -> pb.Worker:
    """Labels and epoch may change; a higher epoch crashes the actors of the one before."""
    given = request.worker
    problems = Problems()
    rules.worker(problems, "worker", given)
    rules.guards(problems, "worker.metadata", given.metadata)
    problems.raise_if_any()
    name = given.metadata.name

    def replace(tx: Tx) -> Row[pb.Worker]:
        row = tx.get(WORKERS, Key("", name))
        if row is None:
            raise NotFound(f"worker {name} not found")
        expected = pb.DeleteOptions(uid=given.metadata.uid, version=given.metadata.version)
        steps.check_guards(f"worker {name}", row, expected)
        changes = Problems()
        for field in _FIXED:
            same = getattr(row.value, field) == getattr(given, field)
            changes.check(f"worker.{field}", same, "is fixed at creation")
        falls = given.epoch < row.value.epoch
        changes.check("worker.epoch", not falls, f"{given.epoch} is below the present {row.value.epoch}")
        changes.raise_if_any()
        row.value.epoch = given.epoch
        row.value.labels.clear()
        row.value.labels.update(given.labels)
        return tx.update(WORKERS, row.key, row.value, uid=row.uid, version=row.version)

    row = await ctx.store.transact(replace)
    ctx.workers.apply(row)
    await workflows.observe_epoch(ctx, name)
    return (await _load(ctx, name)).value


async def delete(ctx: Context, request: pb.DeleteWorkerRequest) -> pb.Worker:
    name = name_of(request.HasField("worker"), request.worker, request.options)

    async def work(lease: object) -> pb.Worker:
        return await workflows.delete(ctx, name, request.options)

    return await ctx.operations.run(f"lease:workerassignment:{name}", "delete", work)


async def drain(ctx: Context, request: pb.DrainWorkerRequest) -> pb.Worker:
    return await workflows.drain(ctx, name_of(request.HasField("worker"), request.worker))


async def list_(ctx: Context, request: pb.ListWorkersRequest) -> pb.ListWorkersResponse:
    items, token = await paging.page(
        Problems(),
        ctx.store.page_key,
        "workers",
        request.page_size,
        request.page_token,
        lambda after, limit: ctx.store.scan(WORKERS, after=after, limit=limit),
    )
    return pb.ListWorkersResponse(workers=items, next_page_token=token)


async def list_assignments(
    ctx: Context, request: pb.ListWorkerActorAssignmentsRequest
) -> pb.ListWorkerActorAssignmentsResponse:
    problems = Problems()
    rules.ref(problems, "worker", request.HasField("worker"), request.worker, scoped=False)
    name = request.worker.name

    async def read(after: Key | None, limit: int) -> list[Row[pb.ActorAssignment]]:
        await _load(ctx, name)
        return await ctx.store.scan(ASSIGNMENTS, scope=name, after=after, limit=limit)

    items, token = await paging.page(
        problems, ctx.store.page_key, f"assignments:{name}", request.page_size, request.page_token, read
    )
    return pb.ListWorkerActorAssignmentsResponse(actor_assignments=items, next_page_token=token)


async def set_capacity(ctx: Context, request: pb.SetWorkerCapacityRequest, node_name: str) -> pb.Worker:
    """Replaces the capacity of a worker on the caller's node; equal values change nothing."""
    problems = Problems()
    rules.ref(problems, "worker", request.HasField("worker"), request.worker, scoped=False)
    rules.capacity(problems, "capacity", request.capacity)
    problems.raise_if_any()
    name = request.worker.name

    def replace(tx: Tx) -> Row[pb.Worker]:
        row = tx.get(WORKERS, Key("", name))
        if row is None or row.value.node_name != node_name:
            raise NotFound(f"worker {name} not found on node {node_name}")
        if row.value.status.capacity == request.capacity:
            return row
        row.value.status.capacity.CopyFrom(request.capacity)
        return tx.update(WORKERS, row.key, row.value, uid=row.uid, version=row.version)

    row = await ctx.store.transact(replace)
    ctx.workers.apply(row)
    return row.value
