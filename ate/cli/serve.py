"""`ate serve --role=…`: runs roles in this process, each with a certificate of its own, until SIGTERM or SIGINT.

Only flags become configurations here; what a role does is its own. The ateom role enters its namespaces before trio
starts, so it runs alone in its process.
"""

from __future__ import annotations

import argparse
import functools
import ipaddress
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import trio

from ate import install, log, names, program
from ate.config import API_PORT, DEFAULT_ROOT, host_port
from ate.errors import FailedPrecondition, Internal, InvalidArgument
from ate.telemetry import relay
from ate.telemetry.service import RATIO, ROUTER_RATIO, open_telemetry

ROLES = ("identity-broker", "api", "controller", "atelet", "router", "ateom")
"""In the order they are started in one process."""
STOP_ORDER = ("controller", "router", "atelet", "api", "identity-broker")
"""In the order they stop there: a controller that puts actors to sleep needs the others alive."""
STOP_GRACE = 120.0
"""Seconds for all of them together, as `ate dev` gives its controller."""

_log = log.Logger("ate.serve")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Flags of every role; a role ignores those of the others."""
    add = parser.add_argument
    add("--role", action="append", choices=ROLES, required=True, help="role to run; repeatable")
    add("--root", default=DEFAULT_ROOT, help="folder of this install (default %(default)s)")
    add("--config", help="YAML file with settings, below flags and environment")
    add("--node-name", default="", help="name of this node (default: the host's name)")
    add("--trust-domain", default="cluster.local")
    add("--api-address", default="127.0.0.1:7443", help="where the api role is reached")
    add("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    add(
        "--metrics-listen-addr",
        default="",
        help="host:port of /metrics (Prometheus), /healthz and /readyz (default: off; a worker serves none)",
    )
    add("--die-with-parent", action="store_true", help="end when the process that started this one ends")
    api = parser.add_argument_group("api").add_argument
    api("--api-listen", default="127.0.0.1:7443")
    api(
        "--actor-ca-pool", default="", help="CA pool file of actors' certificates (default: the broker's, under --root)"
    )
    api("--actor-jwt-pool", default="", help="JWT pool file of actors' tokens (default: the broker's, under --root)")
    api("--actor-issuer", default="https://api.ate-system.svc", help="issuer of actors' tokens (default %(default)s)")
    api("--actor-trust-domain", default="substrate-actor.local", help="of actors' certificates (default %(default)s)")
    api("--authentication-config", default="", metavar="FILE", help="YAML: whose bearer tokens (JWT) count as callers")
    api(
        "--initial-owner",
        action="append",
        default=[],
        metavar="MEMBER",
        help="user:<id> or jwt:<provider>:<sub> that owns everything while no global access policy exists; repeatable",
    )
    api(
        "--api-name",
        action="append",
        default=[],
        metavar="NAME",
        help="DNS name or address in the api's certificate, for callers with a token; repeatable (default: localhost, "
        "the node's name, the address listened on)",
    )
    api("--debug-service", action="store_true", help="serve ateapi.Debug (tests only)")
    controller = parser.add_argument_group("controller").add_argument
    controller("--stop-workers", action="store_true", help="suspend actors and stop workers when this role stops")
    controller("--tunnel-port", default="8443", help="port of every worker's tunnel")
    atelet = parser.add_argument_group("atelet").add_argument
    atelet("--atelet-listen", default="127.0.0.1:0")
    atelet("--atelet-advertise", default="", help="host the api role reaches this agent at (default: as listened)")
    atelet("--runsc", default="", help="this node's own runsc (default: from PATH)")
    atelet("--image-cache-bytes", default=str(20 << 30), help="unused images go when all take more than this")
    atelet("--snapshot-cache-bytes", default=str(4 << 30), help="snapshot files kept on the node for fast wake-ups")
    atelet("--registry-plain-http", action="append", default=[], help="registry host spoken to without TLS; repeatable")
    ateom = parser.add_argument_group("ateom").add_argument
    ateom("--worker-uid", default="")
    ateom("--tunnel-listen", default="127.0.0.1:8443")
    ateom("--cpu-milli", default="0", help="capacity of the worker")
    ateom("--memory-bytes", default="0", help="capacity of the worker")
    ateom("--platform", default="systrap", help="gVisor platform")
    router = parser.add_argument_group("router").add_argument
    router("--router-listen", default="127.0.0.1:8080")
    router("--status-port", default="4040")
    router("--parked-request-budget", default="5", help="seconds a request waits for a free worker")
    router("--parked-request-max", default="1024", help="requests that may wait at once; 0 turns parking off")
    broker = parser.add_argument_group("identity-broker").add_argument
    broker("--openid-listen", default="", help="host:port of discovery and keys for actors' tokens (default: off)")
    broker("--openid-certificate", default="", help="PEM file of key and chain for it (default: of our own CA)")
    broker(
        "--grant", action="append", default=[], metavar="UID=SUBJECT", help="identity a user may ask for; repeatable"
    )


def run(options: argparse.Namespace) -> int:
    """Runs the roles; the exit status. Raises InvalidArgument for flags that do not go together."""
    roles = [role for role in ROLES if role in options.role]
    log.setup(options.log_level, role="+".join(roles))
    root = Path(options.root).absolute()
    if options.die_with_parent:
        program.die_with_parent()
    program.collect_rarely()
    node = options.node_name or install.node_name()
    if not names.is_long(node):
        raise InvalidArgument(f"--node-name: {node!r} is not a DNS subdomain")
    if "ateom" in roles:
        if len(roles) > 1:
            raise InvalidArgument("--role=ateom enters namespaces of its own: run it in a process of its own")
        return _run_ateom(options, root, node)
    trio.run(_serve, roles, options, root, node)
    return 0


async def _serve(roles: list[str], options: argparse.Namespace, root: Path, node: str) -> None:
    stop = trio.Event()
    stops = {role: trio.Event() for role in roles}
    ended = {role: trio.Event() for role in roles}

    async def run_role(role: str, *, task_status: trio.TaskStatus[object]) -> None:
        try:
            await _ROLES[role](options, root, node, stops[role], task_status=task_status)
        finally:
            ended[role].set()

    address = options.metrics_listen_addr
    async with (
        open_telemetry(
            f"ate-{roles[0]}" if len(roles) == 1 else "ate",
            listen=host_port(address) if address else None,
            ratio=ROUTER_RATIO if roles == ["router"] else RATIO,
            attributes={"host.name": node},
            draining=stop,
        ),
        trio.open_nursery() as nursery,
    ):
        if "atelet" in roles:
            nursery.start_soon(relay.run_relay, root / relay.SOCKET)
        nursery.start_soon(_stop_on_signal, stop)
        options.stopping = stop
        for role in roles:
            await nursery.start(run_role, role)
        _log.info("serving", roles=roles, root=str(root), node=node)
        await stop.wait()
        # Roles drain by themselves; a second signal ends them at once.
        with trio.move_on_after(STOP_GRACE):
            for role in sorted(roles, key=STOP_ORDER.index):
                stops[role].set()
                await ended[role].wait()
        nursery.cancel_scope.cancel()


async def _stop_on_signal(stop: trio.Event) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            if stop.is_set():
                raise KeyboardInterrupt
            stop.set()


RoleTask = Callable[..., Awaitable[None]]
_STARTED: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED


async def _broker(
    options: argparse.Namespace,
    root: Path,
    node: str,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[None] = _STARTED,
) -> None:
    from ate.identity.broker import BrokerConfig, run_broker
    from ate.identity.openid import OpenIdConfig

    grants: dict[int, frozenset[str]] = {}
    for grant in options.grant:
        uid, equals, subject = grant.partition("=")
        if not equals or not uid.isdigit():
            raise InvalidArgument(f"--grant: {grant!r} is not UID=SUBJECT")
        grants[int(uid)] = grants.get(int(uid), frozenset()) | {subject}
    openid = None
    if options.openid_listen:
        if not options.actor_issuer.startswith("https://"):
            raise InvalidArgument(f"--actor-issuer: {options.actor_issuer!r} is no https:// URL")
        host, port = host_port(options.openid_listen, 443)
        certificate = Path(options.openid_certificate) if options.openid_certificate else None
        openid = OpenIdConfig(host, port, options.actor_issuer, certificate)
    config = BrokerConfig(root / "identity", options.trust_domain, grants, openid)
    await run_broker(config, stop, task_status=task_status)


async def _with_identity(
    role: str,
    options: argparse.Namespace,
    root: Path,
    node: str,
    work: Callable[..., Awaitable[None]],
    hosts: Sequence[str] = (),
) -> None:
    """Runs `work(identity)` with a certificate for `role` that stays fresh."""
    from ate.identity.client import Request, open_identity

    request = Request(
        root / "identity", names.SERVICE_ACCOUNTS[role], node_name=node, trust_domain=options.trust_domain,
        hosts=hosts, give_up=options.stopping,
    )  # fmt: skip
    async with open_identity(request) as identity:
        await work(identity)


async def _api(
    options: argparse.Namespace,
    root: Path,
    node: str,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[int] = _STARTED,  # type: ignore[assignment]
) -> None:
    from ate.api.access import authentication
    from ate.api.minting import MintingConfig
    from ate.api.server import ApiConfig, run_api
    from ate.identity.broker import ACTOR_CA_POOL, ACTOR_JWT_POOL

    host, port = host_port(options.api_listen, API_PORT)
    minting = MintingConfig(
        Path(options.actor_ca_pool or root / "identity" / ACTOR_CA_POOL),
        Path(options.actor_jwt_pool or root / "identity" / ACTOR_JWT_POOL),
        options.actor_issuer,
        options.actor_trust_domain,
    )
    store = root / "api" / "store.db"
    audit = root / "audit"
    config = ApiConfig(
        store,
        host,
        port,
        options.trust_domain,
        minting,
        audit,
        options.debug_service,
        authentication=authentication.read(Path(options.authentication_config))
        if options.authentication_config
        else None,
        initial_owners=tuple(options.initial_owner),
    )
    await _with_identity(
        "api",
        options,
        root,
        node,
        lambda identity: run_api(config, identity, stop, task_status=task_status),
        hosts=_api_names(options.api_name, node, host),
    )


def _api_names(given: Sequence[str], node: str, host: str) -> tuple[str, ...]:
    """What the api's certificate says it is called."""
    for name in given:
        if not names.is_long(name) and not _is_address(name):
            raise InvalidArgument(f"--api-name: {name!r} is no DNS name and no address")
    listened = [host] if names.is_long(host) or _is_address(host) else []
    return tuple(dict.fromkeys(given or ("localhost", node, *listened)))


def _is_address(text: str) -> bool:
    try:
        return not ipaddress.ip_address(text).is_unspecified
    except ValueError:
        return False


async def _controller(
    options: argparse.Namespace,
    root: Path,
    node: str,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[None] = _STARTED,
) -> None:
    from ate.controller.local import ControllerConfig, run_controller

    host, port = host_port(options.api_address, API_PORT)
    config = ControllerConfig(
        root,
        node,
        host,
        port,
        int(options.tunnel_port),
        options.trust_domain,
        (
            f"--root={root}",
            f"--node-name={node}",
            f"--trust-domain={options.trust_domain}",
            f"--log-level={options.log_level}",
        ),
        options.stop_workers,
    )
    await _with_identity(
        "controller",
        options,
        root,
        node,
        lambda identity: run_controller(config, identity, stop, task_status=task_status),
    )


async def _atelet(
    options: argparse.Namespace,
    root: Path,
    node: str,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[int] = _STARTED,  # type: ignore[assignment]
) -> None:
    from ate.node.atelet import AteletConfig, run_atelet

    api_host, api_port = host_port(options.api_address, API_PORT)
    host, port = host_port(options.atelet_listen)
    config = AteletConfig(
        root,
        node,
        api_host,
        api_port,
        host,
        port,
        options.atelet_advertise or host,
        options.trust_domain,
        options.runsc,
        tuple(options.registry_plain_http),
        int(options.snapshot_cache_bytes),
        int(options.image_cache_bytes),
    )
    await _with_identity(
        "atelet", options, root, node, lambda identity: run_atelet(config, identity, stop, task_status=task_status)
    )


async def _router(
    options: argparse.Namespace,
    root: Path,
    node: str,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[int] = _STARTED,  # type: ignore[assignment]
) -> None:
    from ate.router.parking import ParkingRules
    from ate.router.server import RouterConfig, run_router

    api_host, api_port = host_port(options.api_address, API_PORT)
    host, port = host_port(options.router_listen, 8080)
    parking = ParkingRules(float(options.parked_request_budget), int(options.parked_request_max))
    config = RouterConfig(
        api_host,
        api_port,
        host,
        port,
        int(options.status_port),
        int(options.tunnel_port),
        options.trust_domain,
        parking,
    )
    await _with_identity(
        "router", options, root, node, lambda identity: run_router(config, identity, stop, task_status=task_status)
    )


_ROLES: dict[str, RoleTask] = {
    "identity-broker": _broker,
    "api": _api,
    "controller": _controller,
    "atelet": _atelet,
    "router": _router,
}


def _run_ateom(options: argparse.Namespace, root: Path, node: str) -> int:
    """The tunnel's socket is opened in the host's network, then the namespaces are entered, then trio starts."""
    from ate.node.ateom import cgroup_tree
    from ate.node.isolation import enter_worker_namespaces

    if not names.is_uuid(options.worker_uid):
        raise InvalidArgument(f"--worker-uid: {options.worker_uid!r} is not a UUID")
    host, port = host_port(options.tunnel_listen, 8443)
    tunnel = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    tunnel.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        tunnel.bind((host, port))
    except OSError as error:
        raise FailedPrecondition(f"--tunnel-listen {options.tunnel_listen}: {error.strerror}")
    tunnel.listen(128)
    tree = cgroup_tree(install.install_id(root), options.worker_uid)

    def remove_cgroups() -> None:
        tree.remove()

    enter_worker_namespaces(keep_open=[tunnel.fileno()], at_end=remove_cgroups)
    trio.run(_ateom, options, root, node, tunnel)
    return 0


async def _ateom(options: argparse.Namespace, root: Path, node: str, tunnel: socket.socket) -> None:
    from ate.identity.client import Request, open_identity
    from ate.node.ateom import AteomConfig, run_ateom
    from ate.node.idle import suspend_when_idle
    from ate.node.support import report_capacity, report_crash, support_channel, suspend_before_the_end
    from ate.node.worker import Worker
    from ate.proto.node_grpc import ActorCredentialsStub

    async def crashed(actor_uid: str, reason: str) -> None:
        await report_crash(agent, actor_uid, reason)
        # A worker that lost its actor starts anew: the higher epoch is how the control plane learns of the loss.
        raise Internal(f"actor {actor_uid} crashed: {reason}")

    domain = options.trust_domain
    request = Request(
        root / "identity",
        names.SERVICE_ACCOUNTS["ateom"],
        node_name=node,
        pod_uid=options.worker_uid,
        trust_domain=domain,
    )
    stopping = trio.Event()
    attributes = {"host.name": node, "ate.worker.uid": options.worker_uid, "ate.otlp.relay": "atelet"}
    async with (
        open_telemetry("ate-ateom", attributes=attributes, relay=root / relay.SOCKET),
        open_identity(request) as identity,
        support_channel(root, identity, domain, node) as agent,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(_stop_on_signal, stopping)
        config = AteomConfig(
            root=root,
            worker_uid=options.worker_uid,
            install_id=install.install_id(root),
            router_id=names.service_account_id(domain, names.SERVICE_ACCOUNTS["router"]),
            provider=identity,
            tunnel_socket=tunnel,
            platform=options.platform,
            stopping=stopping,
            on_crash=crashed,
            credentials=ActorCredentialsStub(agent),
        )

        async def serve(*, task_status: trio.TaskStatus[Worker]) -> None:
            await run_ateom(config, task_status=task_status)
            nursery.cancel_scope.cancel()

        worker = await nursery.start(serve)
        cpu, memory = int(options.cpu_milli), int(options.memory_bytes)
        nursery.start_soon(functools.partial(report_capacity, agent, cpu_milli=cpu, memory_bytes=memory))
        nursery.start_soon(suspend_before_the_end, agent, worker, stopping)
        nursery.start_soon(suspend_when_idle, agent, worker)
