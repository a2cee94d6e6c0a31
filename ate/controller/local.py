"""The controller role on one machine: keeps the processes of this node's pools, and their Worker records, as asked.

It looks at pools, processes and records every second (and at once after a change), and does what `plan.py` says.
Losing it loses nothing: workers go on, and a new one finds them again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from ate import names, quantity
from ate.controller import plan
from ate.controller.processes import Note, Processes
from ate.errors import Aborted, AlreadyExists, AteError, NotFound
from ate.identity import spiffe
from ate.identity.tls import Identity
from ate.log import Logger
from ate.proto import ateapi_pb2 as pb
from ate.proto.ateapi_grpc import ControlStub, ProviderStub
from ate.rpc import Channel, Peer
from ate.telemetry import metrics

log = Logger("ate.controller")

INTERVAL = 1.0
NOTICE = 0.05
EVICTION_GRACE = 30 * 60.0
"""Seconds a retiring worker's actors get to be suspended (contract.md)."""
STOP_GRACE = 60.0
"""The same when the whole install stops: somebody waits for it."""
CALL_TIMEOUT = 30.0
_CLASSES = {pb.SANDBOX_CLASS_GVISOR: "gvisor", pb.SANDBOX_CLASS_MICROVM: "microvm"}


@dataclass(frozen=True)
class ControllerConfig:
    """`worker_arguments` are flags for every worker process it starts (root, node, trust domain and the like)."""

    root: Path
    node_name: str
    api_host: str
    api_port: int
    tunnel_port: int = 8443
    trust_domain: str = "cluster.local"
    worker_arguments: tuple[str, ...] = ()
    stop_workers: bool = False
    """At a stop, retire all workers first (suspending their actors), instead of leaving them to the next controller."""


def api_channel(host: str, port: int, identity: Identity, trust_domain: str) -> Channel:
    """A channel to the api role that demands its identity."""
    api = names.service_account_id(trust_domain, names.SERVICE_ACCOUNTS["api"])
    check = spiffe.demand({api})

    def verify(peer: Peer) -> None:
        check(peer.certificate)

    return Channel.tcp(host, port, tls=identity, verify_peer=verify)


class LocalController:
    """See the module; `run` until stopped."""

    def __init__(self, config: ControllerConfig, channel: Channel) -> None:
        self._config = config
        self._control, self._provider = ControlStub(channel), ProviderStub(channel)
        self._processes = Processes(config.root, config.tunnel_port, config.worker_arguments)
        self._retiring: set[str] = set()
        self._pools: dict[str, pb.WorkerPool] = {}
        """As last seen."""
        self._restarts: dict[str, tuple[float, float]] = {}
        """worker -> (not before this trio time, the pause after that), for one that keeps dying."""

    async def run(self, stop: trio.Event) -> None:
        self._processes.load()
        desired = self._counted(lambda pool: pool.spec.replicas)
        ready = self._counted(lambda pool: pool.status.ready_replicas)
        with metrics.DESIRED_WORKERS.by(desired), metrics.READY_WORKERS.by(ready):
            await self._look_after_pools(stop)

    def _counted(self, number: Callable[[pb.WorkerPool], int]) -> metrics.Observe:
        return lambda: [
            (number(pool), {metrics.POOL_NAMESPACE: "", metrics.POOL_NAME: name})
            for name, pool in list(self._pools.items())
        ]

    async def _look_after_pools(self, stop: trio.Event) -> None:
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as looking:
                nursery.start_soon(_cancel_when, stop, looking)
                while True:
                    try:
                        await self._look(nursery)
                    except AteError as error:
                        log.warning("the control plane cannot be asked, trying again", error=error.message)
                    except Exception as error:  # one pool's trouble may not leave the workers of all others unwatched
                        log.error("looking after the workers failed, trying again", exc=error)
                    await self._pause()
            if self._config.stop_workers:
                with trio.CancelScope(shield=True):
                    async with trio.open_nursery() as retiring:
                        for uid in self._processes.all():
                            retiring.start_soon(self._retire, uid, STOP_GRACE)
            nursery.cancel_scope.cancel()

    async def _pause(self) -> None:
        """Until the next look: an interval, or until a process died or became ready, which is cheap to see."""
        before = self._processes.all()
        with trio.move_on_after(INTERVAL):
            while self._processes.all() == before:
                await trio.sleep(NOTICE)

    async def _look(self, nursery: trio.Nursery) -> None:
        await self._processes.collect(self._retiring)
        pools = {pool.metadata.name: pool async for pool in _pages(self._list_pools)}
        workers = {
            worker.metadata.name: worker
            async for worker in _pages(self._list_workers)
            if worker.node_name == self._config.node_name and not worker.worker_namespace
        }
        processes = self._processes.all()
        for step in plan.plan(pools, processes, workers, frozenset(self._retiring)):
            if isinstance(step, plan.Retire | plan.Forget):
                self._retiring.add(step.uid)
                nursery.start_soon(self._retire, step.uid)
            else:
                await self._do(step, pools, workers)
        await self._report(pools, processes)
        self._pools = pools

    async def _do(self, step: plan.Step, pools: dict[str, pb.WorkerPool], workers: dict[str, pb.Worker]) -> None:
        if isinstance(step, plan.Start):
            spec = pools[step.pool].spec
            limits = spec.template.resources.limits
            cpu = quantity.milli_cpu(limits["cpu"]) if "cpu" in limits else 0
            memory = quantity.in_bytes(limits["memory"]) if "memory" in limits else 0
            self._processes.add(step.pool, _CLASSES[spec.sandbox_class], cpu, memory)
        elif isinstance(step, plan.Restart):
            not_before, pause = self._restarts.get(step.uid, (0.0, 0.25))
            if trio.current_time() < not_before:
                return
            pause = min(pause * 2, 30.0) if trio.current_time() - not_before < 60 else 0.5
            self._restarts[step.uid] = (trio.current_time() + pause, pause)
            said = self._processes.last_words(step.uid)
            note = self._processes.restart(step.uid)
            log.warning("worker process died and was restarted", worker=step.uid, epoch=note.epoch, last_words=said)
            if step.uid in workers:  # its actors are lost now, not when the new process is ready
                await self._update(note, pools[note.pool], workers[step.uid])
        elif isinstance(step, plan.Announce):
            note = self._processes.note(step.uid)
            if step.uid in workers:
                await self._update(note, pools[note.pool], workers[step.uid])
            else:
                await self._create(note, pools[note.pool])

    async def _create(self, note: Note, pool: pb.WorkerPool) -> None:
        worker = pb.Worker(
            metadata=pb.ResourceMetadata(name=note.uid),
            worker_pool=note.pool,
            worker_pod=f"{note.pool}-{note.uid[:8]}",
            worker_pod_uid=note.uid,
            node_name=self._config.node_name,
            ips=[note.ip],
            sandbox_class=note.sandbox_class,
            labels=plan.labels_of(pool),
            epoch=note.epoch,
        )
        try:
            await self._control.CreateWorker(pb.CreateWorkerRequest(worker=worker), timeout=CALL_TIMEOUT)
            log.info("worker ready", worker=note.uid, pool=note.pool)
        except AlreadyExists:
            pass

    async def _update(self, note: Note, pool: pb.WorkerPool, worker: pb.Worker) -> None:
        worker.epoch = max(worker.epoch, note.epoch)
        worker.labels.clear()
        worker.labels.update(plan.labels_of(pool))
        try:
            await self._control.UpdateWorker(pb.UpdateWorkerRequest(worker=worker), timeout=CALL_TIMEOUT)
        except Aborted:
            pass  # it changed meanwhile: the next look sees how

    async def _retire(self, uid: str, grace: float = EVICTION_GRACE) -> None:
        """Drain, suspend, stop, remove; every step may be repeated after a failure."""
        try:
            with trio.move_on_after(grace):
                while True:
                    try:
                        await self._suspend_actors(uid)
                        break
                    except AteError as error:
                        log.warning("worker not drained yet", worker=uid, error=error.message)
                        await trio.sleep(1)
            await self._processes.stop(uid)
            ref = pb.ObjectRef(name=uid)
            try:
                await self._control.DeleteWorker(pb.DeleteWorkerRequest(worker=ref), timeout=CALL_TIMEOUT)
            except NotFound:
                pass
            log.info("worker retired", worker=uid)
        except AteError as error:
            log.warning("worker record not removed yet", worker=uid, error=error.message)
        finally:
            self._retiring.discard(uid)

    async def _suspend_actors(self, uid: str) -> None:
        ref = pb.ObjectRef(name=uid)
        try:
            await self._control.DrainWorker(pb.DrainWorkerRequest(worker=ref), timeout=CALL_TIMEOUT)
        except NotFound:
            return
        if not self._processes.all().get(uid, _GONE).alive:
            return
        request = pb.ListWorkerActorAssignmentsRequest(worker=ref)
        answer = await self._control.ListWorkerActorAssignments(request, timeout=CALL_TIMEOUT)
        for assignment in answer.actor_assignments:
            try:
                await self._control.SuspendActor(
                    pb.SuspendActorRequest(actor=assignment.actor), timeout=EVICTION_GRACE / 3
                )
            except NotFound:
                pass

    async def _report(self, pools: dict[str, pb.WorkerPool], processes: Any) -> None:
        for name, pool in pools.items():
            mine = [process for process in processes.values() if process.pool == name]
            status = pb.WorkerPoolStatus(
                replicas=len(mine),
                ready_replicas=sum(process.ready for process in mine),
                selector=f"ate.dev/worker-pool={name}",
            )
            if status != pool.status:
                pool.status.CopyFrom(status)
                try:
                    await self._provider.UpdateWorkerPool(
                        pb.UpdateWorkerPoolRequest(worker_pool=pool), timeout=CALL_TIMEOUT
                    )
                except (Aborted, NotFound):
                    pass  # it was changed meanwhile: the next look reports

    async def _list_pools(self, token: str) -> tuple[Any, str]:
        request = pb.ListWorkerPoolsRequest(page_size=1000, page_token=token)
        answer = await self._provider.ListWorkerPools(request, timeout=CALL_TIMEOUT)
        return answer.worker_pools, answer.next_page_token

    async def _list_workers(self, token: str) -> tuple[Any, str]:
        request = pb.ListWorkersRequest(page_size=1000, page_token=token)
        answer = await self._control.ListWorkers(request, timeout=CALL_TIMEOUT)
        return answer.workers, answer.next_page_token


_GONE = plan.Process("", "", "", 0, False, False)


async def _pages(read: Callable[[str], Any]) -> AsyncIterator[Any]:
    token = ""
    while True:
        items, token = await read(token)
        for item in items:
            yield item
        if not token:
            return


async def _cancel_when(stop: trio.Event, scope: trio.CancelScope) -> None:
    await stop.wait()
    scope.cancel()


async def run_controller(
    config: ControllerConfig,
    identity: Identity,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Runs until `stop` is set."""
    async with api_channel(config.api_host, config.api_port, identity, config.trust_domain) as channel:
        task_status.started()
        await LocalController(config, channel).run(stop)
