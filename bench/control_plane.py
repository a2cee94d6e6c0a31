"""The control plane: wake-ups a second with a null sandbox, and what a million actors cost.

Wake-ups: the real api role on a store on disk, and a node agent that does nothing, each a process of its own, over
mutual TLS; a C-core client keeps calls in flight. Beside it the same pattern, client -> front -> back with messages of
the same sizes, on bare C-core (grpcio) asyncio servers over mutual TLS, in rounds that alternate.

A million actors: the api's own code on one store, without RPCs: create, get, list, update and watch with a thousand
actors and with a million, then the memory and the time to serve of a process that opens that store.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import trio
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509 import load_der_x509_certificate

sys.path.insert(0, str(Path(__file__).parents[1]))

from ate import names, program
from ate.api import actors, atespaces, provider, templates
from ate.api.context import Context
from ate.api.kinds import ACTORS
from ate.api.server import ApiConfig, run_api
from ate.api.worker_cache import WorkerCache
from ate.api.workflows.operations import Operations
from ate.errors import AteError
from ate.identity import ca, spiffe
from ate.identity.tls import Credentials, Identity
from ate.proto import ateapi_pb2 as pb
from ate.proto import atelet_pb2 as node_pb
from ate.proto import node_pb2
from ate.proto.ateapi_grpc import WorkerServiceStub
from ate.proto.atelet_grpc import AteomHerderBase
from ate.proto.node_grpc import NodeRegistryStub
from ate.rpc import Call, Channel, Server, open_tcp_listener, unary
from ate.store import Key, open_sqlite

DOMAIN, NODE = "bench.local", "n1"
WAKEUPS_AIM = 1000.0
CREATE_AIM = 5000.0
FLAT_AIM = 1.2
RSS_AIM_MB = 300.0
RESTART_AIM_SECONDS = 2.0
IN_FLIGHT = 64
WORKERS = 100
IMAGE = "ate.local/x@sha256:" + "a" * 64


# -- certificates: every process issues its own from one pool file -----------------------------------------------------


def identity(directory: Path, role: str) -> Identity:
    return Identity(credentials(directory, role))


def credentials(directory: Path, role: str) -> Credentials:
    pool = ca.load_or_make(directory / "pool.json")
    account = names.SERVICE_ACCOUNTS.get(role)
    id_ = names.service_account_id(DOMAIN, account) if account else names.user_id(DOMAIN, role)
    pod = spiffe.PodIdentity(account, NODE) if account == "atelet" else None
    key = ec.generate_private_key(ec.SECP256R1())
    chain = pool.issue(key.public_key(), id_, holder=pod, hosts=["localhost", "127.0.0.1"])
    return Credentials(key, tuple(chain), pool.trust_bundle_pem)


def pems(directory: Path, role: str) -> tuple[bytes, bytes, bytes]:
    """(trust bundle, key, chain) for C-core."""
    own = credentials(directory, role)
    key = own.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return own.trust_bundle_pem.encode(), key, load_der_x509_certificate(own.chain[0]).public_bytes(Encoding.PEM)


# -- the servers -------------------------------------------------------------------------------------------------------


class NullNode(AteomHerderBase):
    """Every operation is done at once."""

    @unary
    async def Run(self, request: node_pb.RunRequest, call: Call) -> node_pb.RunResponse:
        return node_pb.RunResponse()

    @unary
    async def Restore(self, request: node_pb.RestoreRequest, call: Call) -> node_pb.RestoreResponse:
        return node_pb.RestoreResponse()

    @unary
    async def Checkpoint(self, request: node_pb.CheckpointRequest, call: Call) -> node_pb.CheckpointResponse:
        folder = Path(request.external_config.snapshot_uri.removeprefix("file://"))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_text("{}")
        return node_pb.CheckpointResponse()

    @unary
    async def UploadPausedCheckpoint(
        self, request: node_pb.UploadPausedCheckpointRequest, call: Call
    ) -> node_pb.UploadPausedCheckpointResponse:
        return node_pb.UploadPausedCheckpointResponse()

    @unary
    async def Terminate(self, request: node_pb.TerminateRequest, call: Call) -> node_pb.TerminateResponse:
        return node_pb.TerminateResponse()


def tell_port(directory: Path, name: str, port: int) -> None:
    (directory / f"{name}.tmp").write_text(str(port))
    (directory / f"{name}.tmp").rename(directory / f"{name}.port")


def port_of(directory: Path, name: str) -> int:
    end = time.monotonic() + 30
    path = directory / f"{name}.port"
    while not path.exists():
        if time.monotonic() > end:
            raise SystemExit(f"{name} did not start")
        time.sleep(0.02)
    return int(path.read_text())


async def serve_api(directory: Path) -> None:
    config = ApiConfig(directory / "api" / "store.db", "127.0.0.1", 0, DOMAIN)
    async with trio.open_nursery() as nursery:
        port = await nursery.start(partial(run_api, config, identity(directory, "api"), trio.Event()))
        tell_port(directory, "api", port)


async def serve_node(directory: Path) -> None:
    own = identity(directory, "atelet")
    listener = await open_tcp_listener("127.0.0.1", 0, tls=own)
    async with trio.open_nursery() as nursery:
        await nursery.start(Server([NullNode()]).serve, [listener])
        async with Channel.tcp("127.0.0.1", port_of(directory, "api"), tls=own) as channel:
            here = node_pb2.RegisterNodeRequest(
                node_name=NODE, address=f"127.0.0.1:{listener.port}", boot_id="x", cpu_features=["arch:x"]
            )
            await NodeRegistryStub(channel).RegisterNode(here)
            tell_port(directory, "node", listener.port)
            capacity = pb.WorkerResources(actors=10_000_000)
            for number in range(WORKERS):
                request = pb.SetWorkerCapacityRequest(worker=pb.ObjectRef(name=f"w{number}"), capacity=capacity)
                while True:
                    try:
                        await WorkerServiceStub(channel).SetWorkerCapacity(request)
                        break
                    except AteError:  # not there yet
                        await trio.sleep(0.05)
        tell_port(directory, "capacity", 1)
        await trio.sleep_forever()


def _raw(name: str, handler: Any) -> Any:
    method = grpc.unary_unary_rpc_method_handler(handler)
    return grpc.method_handlers_generic_handler("bench.Peer", {name: method})


async def serve_peer(directory: Path, name: str) -> None:
    """`front` answers with an actor's bytes after asking `back`, which answers nothing."""
    bundle, key, chain = pems(directory, "api")
    server = grpc.aio.server()
    if name == "back":

        async def back(request: bytes, context: Any) -> bytes:
            return b""

        server.add_generic_rpc_handlers((_raw("Call", back),))
    else:
        channel = grpc.aio.secure_channel(
            f"localhost:{port_of(directory, 'back')}", grpc.ssl_channel_credentials(bundle, key, chain)
        )
        ask = channel.unary_unary("/bench.Peer/Call")

        async def front(request: bytes, context: Any) -> bytes:
            await ask(bytes(700))
            return bytes(541)

        server.add_generic_rpc_handlers((_raw("Call", front),))
    tls = grpc.ssl_server_credentials([(key, chain)], bundle, require_client_auth=True)
    port = server.add_secure_port("localhost:0", tls)
    await server.start()
    tell_port(directory, name, port)
    await server.wait_for_termination()


# -- the load ----------------------------------------------------------------------------------------------------------


async def in_flight(calls: list[Callable[[], Awaitable[Any]]]) -> tuple[float, list[float]]:
    """(calls a second, seconds each took, sorted) with IN_FLIGHT under way."""
    took: list[float] = []
    todo = iter(calls)

    async def caller() -> None:
        for call in todo:
            start = time.perf_counter()
            await call()
            took.append(time.perf_counter() - start)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
    return len(calls) / (time.perf_counter() - began), sorted(took)


async def load(directory: Path, what: str, first: int, count: int) -> dict[str, float]:
    target = "front" if what == "peer" else "api"
    bundle, key, chain = pems(directory, "ann")
    async with grpc.aio.secure_channel(
        f"localhost:{port_of(directory, target)}", grpc.ssl_channel_credentials(bundle, key, chain)
    ) as channel:

        def method(name: str, reply: Any) -> Any:
            return channel.unary_unary(f"/ateapi.Control/{name}", lambda m: m.SerializeToString(), reply.FromString)

        if what == "peer":
            ask = channel.unary_unary("/bench.Peer/Call")
            calls = [partial(ask, bytes(30)) for _ in range(count)]
        elif what == "create":
            create = method("CreateActor", pb.Actor)
            calls = [partial(create, pb.CreateActorRequest(actor=actor_of(n))) for n in range(first, first + count)]
        else:
            resume = method("ResumeActor", pb.ResumeActorResponse)
            calls = [
                partial(resume, pb.ResumeActorRequest(actor=pb.ObjectRef(atespace="demo", name=f"a{n}")))
                for n in range(first, first + count)
            ]
        rate, took = await in_flight(calls)
    return {"rate": rate, "p50_ms": took[len(took) // 2] * 1e3, "p95_ms": took[len(took) * 95 // 100] * 1e3}


def actor_of(number: int) -> pb.Actor:
    return pb.Actor(
        metadata=pb.ResourceMetadata(atespace="demo", name=f"a{number}"),
        actor_template=pb.ObjectRef(atespace="demo", name="t"),
    )


def template_of(location: str) -> pb.ActorTemplate:
    probe = pb.ContainerReadyz(http_get=pb.HTTPGetAction(port=80))
    return pb.ActorTemplate(
        metadata=pb.ResourceMetadata(atespace="demo", name="t"),
        containers=[pb.Container(name="c", image=IMAGE, readyz=probe)],
        sandbox_config=pb.SandboxConfig(sandbox_class=pb.SANDBOX_CLASS_GVISOR, config_name="g"),
        snapshots_config=pb.SnapshotsConfig(storage_location=location),
    )


def set_up(directory: Path) -> None:
    """The atespace, runtime, template and workers."""
    bundle, key, chain = pems(directory, "controller")
    channel = grpc.secure_channel(
        f"localhost:{port_of(directory, 'api')}", grpc.ssl_channel_credentials(bundle, key, chain)
    )

    def call(path: str, request: Any, reply: Any) -> Any:
        return channel.unary_unary(path, lambda m: m.SerializeToString(), reply.FromString)(request, timeout=30)

    space = pb.Atespace(metadata=pb.ResourceMetadata(name="demo"))
    call("/ateapi.Control/CreateAtespace", pb.CreateAtespaceRequest(atespace=space), pb.Atespace)
    config = pb.SandboxRuntimeConfig(
        metadata=pb.ResourceMetadata(name="g"), spec=pb.SandboxRuntimeConfigSpec(pause_image=IMAGE)
    )
    request = pb.CreateSandboxConfigRequest(sandbox_config=config)
    call("/ateapi.Provider/CreateSandboxConfig", request, pb.SandboxRuntimeConfig)
    for number in range(WORKERS):
        worker = pb.Worker(
            metadata=pb.ResourceMetadata(name=f"w{number}"),
            worker_pod_uid=f"00000000-0000-4000-8000-{number:012}",
            node_name=NODE, ips=["127.0.0.1"], sandbox_class="gvisor", epoch=1,
        )  # fmt: skip
        call("/ateapi.Control/CreateWorker", pb.CreateWorkerRequest(worker=worker), pb.Worker)
    port_of(directory, "capacity")
    template = template_of(f"file://{directory}/objects")
    call(
        "/ateapi.Control/CreateActorTemplate", pb.CreateActorTemplateRequest(actor_template=template), pb.ActorTemplate
    )
    get = pb.GetActorTemplateRequest(actor_template=pb.ObjectRef(atespace="demo", name="t"))
    while not call("/ateapi.Control/GetActorTemplate", get, pb.ActorTemplate).status.golden_snapshot_status.HasField(
        "golden_tag"
    ):
        time.sleep(0.1)


def in_process(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, __file__, *words], stdout=subprocess.PIPE)


def loaded(directory: Path, what: str, first: int, count: int) -> dict[str, float]:
    out, _ = in_process("--load", str(directory), what, str(first), str(count)).communicate()
    found: dict[str, float] = json.loads(out)
    return found


def wakeups(directory: Path, rounds: int, count: int) -> dict[str, Any]:
    servers = [in_process("--serve", str(directory), name) for name in ("api", "node", "back", "front")]
    seen: dict[str, list[dict[str, float]]] = {"create": [], "resume": [], "peer": []}
    try:
        set_up(directory)
        port_of(directory, "front")
        for number in range(rounds + 1):
            for what, runs in seen.items():
                found = loaded(directory, what, number * count, count)
                if number:  # the first round warms up
                    runs.append(found)
    finally:
        for server in servers:
            server.kill()
            server.wait()
    figures = {}
    for what, runs in seen.items():
        figures[what] = {key: round(statistics.median(run[key] for run in runs), 2) for key in runs[0]}
        print(f"{what:8}", "  ".join(f"{key} {value:9.1f}" for key, value in figures[what].items()), flush=True)
    return figures


# -- a million actors --------------------------------------------------------------------------------------------------


async def context(store: Any, nursery: trio.Nursery) -> Context:
    return Context(store, None, None, WorkerCache(store), Operations(store, nursery, "bench"))  # type: ignore[arg-type]


async def timed(calls: int, work: Callable[[int], Awaitable[Any]]) -> list[float]:
    took = []
    for number in range(calls):
        start = time.perf_counter()
        await work(number)
        took.append(time.perf_counter() - start)
    return sorted(took)


async def look(ctx: Context, size: int, rng: random.Random) -> dict[str, float]:
    """Figures with `size` actors, in microseconds; creates a second with 64 callers."""
    ref = lambda: pb.ObjectRef(atespace="demo", name=f"a{rng.randrange(size)}")  # noqa: E731

    async def get(_: int) -> None:
        await actors.get(ctx, pb.GetActorRequest(actor=ref()))

    token = ""

    async def page(_: int) -> None:
        nonlocal token
        token = (await actors.list_(ctx, pb.ListActorsRequest(page_size=100, page_token=token))).next_page_token

    async def update(_: int) -> None:
        actor = await actors.get(ctx, pb.GetActorRequest(actor=ref()))
        actor.worker_selector.match_labels["x"] = str(rng.random())[:9]
        await actors.update(ctx, pb.UpdateActorRequest(actor=actor))

    figures: dict[str, float] = {}
    for name, calls, work in (("get", 5000, get), ("list", 300, page), ("update", 500, update)):
        took = await timed(calls, work)
        figures[f"{name}_p50_us"] = took[len(took) // 2] * 1e6
        figures[f"{name}_p99_us"] = took[len(took) * 99 // 100] * 1e6
    newest = (await ctx.store.transact(lambda tx: tx.scan(ACTORS, limit=1)))[0]
    async with ctx.store.watch(ACTORS, resume_token=ctx.store._token(await _last(ctx))) as feed:  # type: ignore[attr-defined]
        took = []
        for _ in range(200):
            start = time.perf_counter()
            row = await ctx.store.get(ACTORS, newest.key)
            assert row is not None
            await ctx.store.transact(partial(_touch, row=row))
            await anext(feed)
            took.append(time.perf_counter() - start)
    figures["watch_p50_us"] = sorted(took)[100] * 1e6
    return figures


def _touch(tx: Any, row: Any) -> None:
    tx.update(ACTORS, row.key, row.value, uid=row.uid, version=row.version)


async def _last(ctx: Context) -> int:
    from ate.store.sqlite import _newest

    return int(await ctx.store._in_lister(_newest))  # type: ignore[attr-defined]


async def create_rate(ctx: Context, first: int, count: int) -> float:
    todo = iter(range(first, first + count))

    async def caller() -> None:
        for number in todo:
            await actors.create(ctx, pb.CreateActorRequest(actor=actor_of(number)))

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(IN_FLIGHT):
            nursery.start_soon(caller)
    return count / (time.perf_counter() - began)


async def scale(directory: Path, size: int) -> dict[str, Any]:
    rng = random.Random(1)
    small = 1000
    async with open_sqlite(directory / "scale.db") as store, trio.open_nursery() as nursery:
        ctx = await context(store, nursery)
        await atespaces.create(ctx, pb.CreateAtespaceRequest(atespace=pb.Atespace(metadata={"name": "demo"})))
        config = pb.SandboxRuntimeConfig(
            metadata=pb.ResourceMetadata(name="g"), spec=pb.SandboxRuntimeConfigSpec(pause_image=IMAGE)
        )
        await provider.create_config(ctx, pb.CreateSandboxConfigRequest(sandbox_config=config))
        template = template_of("file:///none")
        await templates.create(ctx, pb.CreateActorTemplateRequest(actor_template=template))
        await create_rate(ctx, 0, small)
        figures: dict[str, Any] = {"at_1k": await look(ctx, small, rng)}
        figures["create_per_s_at_1k"] = await create_rate(ctx, small, 20_000)
        sample = await actors.get(ctx, pb.GetActorRequest(actor=pb.ObjectRef(atespace="demo", name="a0")))
        filled = small + 20_000
        while filled < size:  # the rest without the api's checks, a thousand a transaction

            def fill(tx: Any, first: int = filled) -> None:
                for number in range(first, min(first + 1000, size)):
                    sample.metadata.name = f"a{number}"
                    tx.insert(ACTORS, Key("demo", f"a{number}"), sample)

            await store.transact(fill)
            filled += 1000
        figures["at_full"] = await look(ctx, size, rng)
        figures["create_per_s_at_full"] = await create_rate(ctx, size, 20_000)
        nursery.cancel_scope.cancel()
    return figures


async def serve_scaled(directory: Path) -> dict[str, float]:
    """What a process that opens the full store needs: seconds to serve, and its memory after a while."""
    began = time.perf_counter()
    (directory / "big" / "api").mkdir(parents=True)
    (directory / "scale.db").rename(directory / "big" / "api" / "store.db")
    config = ApiConfig(directory / "big" / "api" / "store.db", "127.0.0.1", 0, DOMAIN)
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_api, config, identity(directory, "api"), stop))
        served = time.perf_counter() - began
        await trio.sleep(15)
        rss = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
        stop.set()
        nursery.cancel_scope.cancel()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return {"seconds_to_serve": served, "rss_mb": rss, "peak_rss_mb": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--count", type=int, default=3000, help="wake-ups a round")
    parser.add_argument("--actors", type=int, default=1_000_000)
    parser.add_argument("--skip-scale", action="store_true")
    for hidden in ("--serve", "--load", "--scale"):
        parser.add_argument(hidden, nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        directory, name = Path(options.serve[0]), options.serve[1]
        program.collect_rarely()
        if name in ("front", "back"):
            asyncio.run(serve_peer(directory, name))
        else:
            trio.run(serve_api if name == "api" else serve_node, directory)
        return
    if options.load:
        directory, what, first, count = options.load
        print(json.dumps(asyncio.run(load(Path(directory), what, int(first), int(count)))))
        return
    if options.scale:
        directory = Path(options.scale[0])
        if len(options.scale) > 1:
            print(json.dumps(trio.run(scale, directory, int(options.scale[1]))))
        else:
            print(json.dumps(trio.run(serve_scaled, directory)))
        return
    figures: dict[str, Any] = {}
    holds: dict[str, bool] = {}
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        directory = Path(folder)
        ca.load_or_make(directory / "pool.json")
        figures["wakeups"] = wakeups(directory, options.rounds, options.count)
        rate, peer = figures["wakeups"]["resume"]["rate"], figures["wakeups"]["peer"]["rate"]
        holds["wakeups"] = rate >= WAKEUPS_AIM
        if not options.skip_scale:
            out, _ = in_process("--scale", folder, str(options.actors)).communicate()
            figures["scale"] = json.loads(out)
            out, _ = in_process("--scale", folder).communicate()
            figures["scaled_process"] = json.loads(out.splitlines()[-1])
            small, big = figures["scale"]["at_1k"], figures["scale"]["at_full"]
            for name in ("get_p99_us", "list_p50_us"):
                holds[f"{name} flat"] = big[name] <= FLAT_AIM * small[name]
            holds["create"] = figures["scale"]["create_per_s_at_full"] >= CREATE_AIM
            holds["rss"] = figures["scaled_process"]["peak_rss_mb"] <= RSS_AIM_MB
            holds["restart"] = figures["scaled_process"]["seconds_to_serve"] <= RESTART_AIM_SECONDS
    line = {
        "bench": "control_plane",
        "figures": figures,
        "peer": f"the same calls on bare grpcio {grpc.__version__} asyncio servers",
        "ratio": round(rate / peer, 3),
        "aim": WAKEUPS_AIM,
        "holds": holds,
    }
    print(json.dumps(line))


if __name__ == "__main__":
    main()
