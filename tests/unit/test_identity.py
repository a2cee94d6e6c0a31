"""Promises of the CA pool, SPIFFE ids and TLS contexts."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio
import trio.testing
from cryptography.hazmat.primitives.asymmetric import ec

from ate.errors import FailedPrecondition, InvalidArgument, PermissionDenied, Unauthenticated, Unavailable
from ate.identity import ca, client, spiffe
from ate.identity.broker import BrokerConfig, _BrokerTls
from ate.identity.client import _TrustOnly
from ate.identity.tls import Credentials, Identity
from ate.rpc import TlsProvider

ROUTER = "spiffe://cluster.local/ns/ate-system/sa/atenet-router"


def credentials(pool: ca.CaPool, spiffe_id: str, **options: object) -> Credentials:
    key = ec.generate_private_key(ec.SECP256R1())
    return Credentials(key, tuple(pool.issue(key.public_key(), spiffe_id, **options)), pool.trust_bundle_pem)  # type: ignore[arg-type]


def pool(name: str = "1") -> ca.CaPool:
    return ca.CaPool((ca.make_authority(name),))


async def handshake(server: TlsProvider, client: TlsProvider) -> bytes:
    """The client's certificate as the server saw it; raises what either side raised."""
    near, far = trio.testing.memory_stream_pair()
    tls_server = trio.SSLStream(near, server.server_context(), server_side=True)
    tls_client = trio.SSLStream(far, client.client_context())
    async with trio.open_nursery() as nursery:

        async def serve() -> None:
            await tls_server.do_handshake()
            await tls_server.send_all(b"x")

        nursery.start_soon(serve)
        await tls_client.do_handshake()
        await tls_client.receive_some(1)
    der: bytes = tls_server.getpeercert(binary_form=True)
    return der


def test_a_pool_file_is_private_and_survives_reloading(tmp_path: Path) -> None:
    path = tmp_path / "ca-pool.json"
    made = ca.load_or_make(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert ca.load_or_make(path).trust_bundle_pem == made.trust_bundle_pem


def test_a_damaged_pool_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "ca-pool.json"
    for text in ("", "{}", '{"CAs": []}', '{"CAs": [{"ID": "1"}]}'):
        path.write_text(text)
        with pytest.raises(FailedPrecondition, match=r"ca-pool\.json"):
            ca.load(path)


def test_a_certificate_tells_who_and_where_its_holder_is() -> None:
    pod = spiffe.PodIdentity("atelet", "node-1", "pod-1")
    caller = spiffe.read(credentials(pool(), ROUTER, holder=pod).chain[0])
    assert caller == spiffe.Caller(ROUTER, pod)


def test_a_demand_names_who_came_instead() -> None:
    der = credentials(pool(), "spiffe://cluster.local/user/eve").chain[0]
    with pytest.raises(PermissionDenied, match="user/eve"):
        spiffe.demand({ROUTER})(der)
    with pytest.raises(Unauthenticated):
        spiffe.demand({ROUTER})(None)


def test_a_bad_signing_request_is_an_invalid_argument() -> None:
    for csr in (b"", b"junk", b"0" * 20000):
        with pytest.raises(InvalidArgument, match="certificate_signing_request"):
            ca.public_key_of(csr)


async def test_both_sides_of_a_connection_know_each_other() -> None:
    shared = pool()
    der = await handshake(
        Identity(credentials(shared, "spiffe://cluster.local/x")), Identity(credentials(shared, ROUTER))
    )
    assert spiffe.read(der).spiffe_id == ROUTER


async def test_a_certificate_of_another_authority_or_an_expired_one_is_refused() -> None:
    shared = pool()
    server = Identity(credentials(shared, "spiffe://cluster.local/x"))
    old = datetime.now(UTC) - timedelta(days=9)
    for bad in (credentials(pool("2"), ROUTER), credentials(shared, ROUTER, now=old)):
        client = Identity(Credentials(bad.key, bad.chain, shared.trust_bundle_pem))
        with pytest.raises(BaseException) as caught:
            await handshake(server, client)
        assert caught.group_contains(trio.BrokenResourceError) or isinstance(
            caught.value, ssl.SSLError | ExceptionGroup
        )


async def test_a_renewed_identity_is_used_by_the_next_connection() -> None:
    shared = pool()
    server = Identity(credentials(shared, "spiffe://cluster.local/x"))
    client = Identity(credentials(shared, "spiffe://cluster.local/before"))
    await handshake(server, client)
    client.renew(credentials(shared, "spiffe://cluster.local/after"))
    assert spiffe.read(await handshake(server, client)).spiffe_id.endswith("/after")


def test_a_certificate_is_due_late_in_its_life_and_when_the_clock_was_set_to_before_it() -> None:
    made = datetime.now(UTC)
    it = credentials(pool(), ROUTER, now=made)
    for share, due in ((0, False), (0.6, False), (0.7, True), (1, True), (9000, True), (-0.02, False), (-1, True)):
        assert it.is_due(made + share * ca.LEAF_LIFETIME) is due, share


def test_a_certificate_is_due_once_another_authority_signs_and_not_when_one_is_only_trusted_as_well() -> None:
    old, new = ca.make_authority("1"), ca.make_authority("2")
    it = credentials(ca.CaPool((old,)), ROUTER)
    for order, due in (((old, new), False), ((new, old), True)):
        bundle = ca.CaPool(order).trust_bundle_pem
        assert Credentials(it.key, it.chain, bundle).is_due(datetime.now(UTC)) is due


@pytest.mark.parametrize("hours", [-25, 48], ids=["slept too long", "clock set back"])
async def test_the_broker_never_presents_a_certificate_of_another_time(tmp_path: Path, hours: float) -> None:
    """`hours` from now it made one; its own clock, the monotonic one, has not moved since."""
    now = datetime.now(UTC) + timedelta(hours=hours)
    authorities = pool()
    broker = _BrokerTls(BrokerConfig(tmp_path), lambda: authorities, lambda: now)
    caller = _TrustOnly(authorities.trust_bundle_pem)
    unusable = broker.server_context()
    assert broker.server_context() is unusable
    now = datetime.now(UTC)
    await handshake(broker, caller)
    usable = broker.server_context()
    now += timedelta(minutes=30)
    assert broker.server_context() is usable
    authorities = ca.CaPool((ca.make_authority("2"), *authorities.authorities))
    assert broker.server_context() is not usable, "another authority signs"


@pytest.mark.parametrize("hours", [-25, 48], ids=["slept too long", "clock set back"])
async def test_a_role_renews_a_certificate_of_another_time_and_goes_on_while_no_broker_answers(
    hours: float, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    shared = pool()
    identity = Identity(credentials(shared, ROUTER, now=datetime.now(UTC) + timedelta(hours=hours)))
    asked = 0

    async def obtain(request: client.Request, *, patience: float) -> Credentials:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise Unavailable("no identity broker answers")
        return credentials(shared, ROUTER)

    monkeypatch.setattr(client, "obtain", obtain)
    with trio.move_on_after(600):
        await client._keep_fresh(identity, client.Request(Path("/nowhere"), "atenet-router"))
    assert asked == 2, "once in vain, once for good"
    await handshake(identity, identity)


async def test_after_a_rotation_both_authorities_are_trusted() -> None:
    old, new = ca.make_authority("1"), ca.make_authority("2")
    before, after = ca.CaPool((old,)), ca.CaPool((new, old))
    server = Identity(credentials(after, "spiffe://cluster.local/x"))
    client = credentials(before, ROUTER)
    await handshake(server, Identity(Credentials(client.key, client.chain, after.trust_bundle_pem)))
