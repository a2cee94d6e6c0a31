"""Provider: worker pools and sandbox runtimes as records in the store (on a cluster they mirror custom resources)."""

from __future__ import annotations

from ate.api import paging
from ate.api.context import Context
from ate.api.kinds import CONFIGS, POOLS, TEMPLATES
from ate.api.validation import resources as rules
from ate.api.validation.problems import Problems
from ate.api.workflows import steps
from ate.errors import FailedPrecondition, InvalidArgument, NotFound
from ate.proto import ateapi_pb2 as pb
from ate.store import Key, Row, Tx


def _name(field: str, present: bool, value: pb.ObjectRef, *options: pb.DeleteOptions) -> str:
    problems = Problems()
    rules.ref(problems, field, present, value, scoped=False)
    for option in options:
        rules.delete_options(problems, "options", option)
    problems.raise_if_any()
    return value.name


# -- worker pools -------------------------------------------------------------------------------------------------


def _pool(given: pb.WorkerPool) -> pb.WorkerPool:
    pool = pb.WorkerPool(labels=given.labels, spec=given.spec)
    pool.spec.sandbox_class = pool.spec.sandbox_class or pb.SANDBOX_CLASS_GVISOR
    return pool


async def create_pool(ctx: Context, request: pb.CreateWorkerPoolRequest) -> pb.WorkerPool:
    problems = Problems()
    rules.worker_pool(problems, "worker_pool", request.worker_pool)
    problems.raise_if_any()
    pool = _pool(request.worker_pool)
    name = request.worker_pool.metadata.name
    pool.metadata.name = name
    return (await ctx.store.transact(lambda tx: tx.insert(POOLS, Key("", name), pool))).value


async def get_pool(ctx: Context, request: pb.GetWorkerPoolRequest) -> pb.WorkerPool:
    name = _name("worker_pool", request.HasField("worker_pool"), request.worker_pool)
    row = await ctx.store.get(POOLS, Key("", name))
    if row is None:
        raise NotFound(f"worker pool {name} not found")
    return row.value


async def update_pool(ctx: Context, request: pb.UpdateWorkerPoolRequest, *, may_set_status: bool) -> pb.WorkerPool:
    """Labels and spec; the controller, and only it, may also report the status."""
    given = request.worker_pool
    problems = Problems()
    rules.worker_pool(problems, "worker_pool", given)
    rules.guards(problems, "worker_pool.metadata", given.metadata)
    problems.raise_if_any()

    def replace(tx: Tx) -> Row[pb.WorkerPool]:
        row = tx.get(POOLS, Key("", given.metadata.name))
        if row is None:
            raise NotFound(f"worker pool {given.metadata.name} not found")
        expected = pb.DeleteOptions(uid=given.metadata.uid, version=given.metadata.version)
        steps.check_guards(f"worker pool {row.key}", row, expected)
        fresh, changes = _pool(given), Problems()
        for field in ("deployment_namespace", "sandbox_class"):
            same = getattr(row.value.spec, field) == getattr(fresh.spec, field)
            changes.check(f"worker_pool.spec.{field}", same, "is fixed at creation; make another pool")
        changes.raise_if_any()
        fresh.metadata.CopyFrom(row.value.metadata)
        fresh.status.CopyFrom(given.status if may_set_status else row.value.status)
        return tx.update(POOLS, row.key, fresh, uid=row.uid, version=row.version)

    return (await ctx.store.transact(replace)).value


async def delete_pool(ctx: Context, request: pb.DeleteWorkerPoolRequest) -> pb.WorkerPool:
    """The controller drains and stops its workers once it sees the pool gone."""
    name = _name("worker_pool", request.HasField("worker_pool"), request.worker_pool, request.options)
    key, guards = Key("", name), request.options
    row = await ctx.store.transact(lambda tx: tx.delete(POOLS, key, uid=guards.uid, version=guards.version))
    return row.value


async def list_pools(ctx: Context, request: pb.ListWorkerPoolsRequest) -> pb.ListWorkerPoolsResponse:
    items, token = await paging.page(
        Problems(),
        ctx.store.page_key,
        "pools",
        request.page_size,
        request.page_token,
        lambda after, limit: ctx.store.scan(POOLS, after=after, limit=limit),
    )
    return pb.ListWorkerPoolsResponse(worker_pools=items, next_page_token=token)


# -- sandbox runtimes ---------------------------------------------------------------------------------------------


def _config(given: pb.SandboxRuntimeConfig) -> pb.SandboxRuntimeConfig:
    config = pb.SandboxRuntimeConfig(spec=given.spec)
    config.spec.sandbox_class = config.spec.sandbox_class or pb.SANDBOX_CLASS_GVISOR
    return config


async def create_config(ctx: Context, request: pb.CreateSandboxConfigRequest) -> pb.SandboxRuntimeConfig:
    problems = Problems()
    rules.sandbox_config(problems, "sandbox_config", request.sandbox_config)
    problems.raise_if_any()
    config = _config(request.sandbox_config)
    name = request.sandbox_config.metadata.name
    config.metadata.name = name
    return (await ctx.store.transact(lambda tx: tx.insert(CONFIGS, Key("", name), config))).value


async def get_config(ctx: Context, request: pb.GetSandboxConfigRequest) -> pb.SandboxRuntimeConfig:
    name = _name("sandbox_config", request.HasField("sandbox_config"), request.sandbox_config)
    row = await ctx.store.get(CONFIGS, Key("", name))
    if row is None:
        raise NotFound(f"SandboxConfig {name} not found")
    return row.value


async def update_config(ctx: Context, request: pb.UpdateSandboxConfigRequest) -> pb.SandboxRuntimeConfig:
    given = request.sandbox_config
    problems = Problems()
    rules.sandbox_config(problems, "sandbox_config", given)
    rules.guards(problems, "sandbox_config.metadata", given.metadata)
    problems.raise_if_any()

    def replace(tx: Tx) -> Row[pb.SandboxRuntimeConfig]:
        row = tx.get(CONFIGS, Key("", given.metadata.name))
        if row is None:
            raise NotFound(f"SandboxConfig {given.metadata.name} not found")
        expected = pb.DeleteOptions(uid=given.metadata.uid, version=given.metadata.version)
        steps.check_guards(f"SandboxConfig {row.key}", row, expected)
        fresh = _config(given)
        if row.value.spec.sandbox_class != fresh.spec.sandbox_class:
            raise InvalidArgument("sandbox_config.spec.sandbox_class: is fixed at creation")
        fresh.metadata.CopyFrom(row.value.metadata)
        return tx.update(CONFIGS, row.key, fresh, uid=row.uid, version=row.version)

    return (await ctx.store.transact(replace)).value


async def delete_config(ctx: Context, request: pb.DeleteSandboxConfigRequest) -> pb.SandboxRuntimeConfig:
    """FAILED_PRECONDITION while a template names it."""
    name = _name("sandbox_config", request.HasField("sandbox_config"), request.sandbox_config, request.options)

    def remove(tx: Tx) -> Row[pb.SandboxRuntimeConfig]:
        after = None
        while page := tx.scan(TEMPLATES, after=after, limit=500):
            for row in page:
                if row.value.sandbox_config.config_name == name:
                    raise FailedPrecondition(f"SandboxConfig {name} is used by actor template {row.key}")
            after = page[-1].key
        return tx.delete(CONFIGS, Key("", name), uid=request.options.uid, version=request.options.version)

    return (await ctx.store.transact(remove)).value


async def list_configs(ctx: Context, request: pb.ListSandboxConfigsRequest) -> pb.ListSandboxConfigsResponse:
    items, token = await paging.page(
        Problems(),
        ctx.store.page_key,
        "sandbox-configs",
        request.page_size,
        request.page_token,
        lambda after, limit: ctx.store.scan(CONFIGS, after=after, limit=limit),
    )
    return pb.ListSandboxConfigsResponse(sandbox_configs=items, next_page_token=token)
