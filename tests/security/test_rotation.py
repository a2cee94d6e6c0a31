"""Promise: the keys of CA and tokens are rotated while everything works, and no request fails for it."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path

import jwt
import trio
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from ate import install as installs
from ate.cli.client import connect
from ate.identity import ca, client, jwt_pool, rotation
from ate.identity.broker import ACTOR_JWT_POOL
from ate.identity.tls import make_context
from ate.proto import ateapi_pb2 as pb
from tests.system.install import Install, open_install

OVERLAP = timedelta(seconds=5)


async def shown_by(install: Install) -> str:
    """Who signed the certificate that the api role shows to a new connection."""
    held = await client.obtain(client.Request(install.root / "identity", "user:root"))
    context = make_context(held, server=False, alpn=("h2",))
    host, _, port = installs.endpoints(install.root)["api"].rpartition(":")
    stream = trio.SSLStream(await trio.open_tcp_stream(host, int(port)), context, https_compatible=True)
    async with stream:
        await stream.do_handshake()
        der: bytes = stream.getpeercert(binary_form=True)
    return x509.load_der_x509_certificate(der).issuer.rfc4514_string()


async def test_a_rotated_ca_costs_no_request(tmp_path: Path) -> None:
    async with open_install(tmp_path / "root") as install, trio.open_nursery() as nursery:
        await install.set_up(replicas=2)
        for name in ("awake", "sleepy"):
            await install.add_actor(name)
        done = trio.Event()
        counts = {"awake": 0, "sleepy": 0, "calls": 0}

        async def requests() -> None:
            while not done.is_set():
                answer = await install.count("awake")
                counts["awake"] += 1
                assert answer["ram"] == counts["awake"]
                await trio.sleep(0.05)

        async def sleeps() -> None:
            while not done.is_set():
                answer = await install.count("sleepy")
                counts["sleepy"] += 1
                assert answer["ram"] == counts["sleepy"]
                await install.suspend("sleepy")

        async def new_callers() -> None:
            while not done.is_set():
                async with connect(install.root, "", "cluster.local") as api:
                    await api.control.ListAtespaces(pb.ListAtespacesRequest(), timeout=10)
                counts["calls"] += 1
                await trio.sleep(0.1)

        for work in (requests, sleeps, new_callers):
            nursery.start_soon(work)
        path = install.root / "identity" / "ca-pool.json"
        old = ca.load(path).authorities[0]
        _, signs, _ = rotation.rotate(
            path, ca.LIST, lambda id_: ca.to_entry(ca.make_authority(id_)), longest=timedelta(), overlap=OVERLAP
        )
        (new,) = [authority for authority in ca.load(path).authorities if authority.id != old.id]

        async def taken_over() -> bool:
            return await shown_by(install) == new.root.subject.rfc4514_string()

        await install.until(taken_over)
        assert time.time() >= signs, "it signed before everybody could know it"
        await trio.sleep(3)  # the other roles and the workers look every two seconds
        path.write_text(ca.to_json(ca.CaPool((new,))))  # nobody holds anything of the old one any more

        async def forgotten() -> bool:
            return (
                old.root.public_bytes(Encoding.PEM).decode()
                not in (install.root / "identity" / "trust-bundle.pem").read_text()
            )

        await install.until(forgotten)
        before = dict(counts)
        await trio.sleep(5)
        assert all(counts[what] > before[what] for what in counts), "it goes on with the new authority alone"
        done.set()


async def test_tokens_of_before_and_after_a_rotation_are_good_by_the_keys_published(tmp_path: Path) -> None:
    path = tmp_path / ACTOR_JWT_POOL
    jwt_pool.make_if_absent(path)
    file = jwt_pool.open_pool(path)
    before = file.current().at(time.time()).sign({"sub": "x"})
    rotation.rotate(
        path,
        jwt_pool.LIST,
        lambda id_: jwt_pool.to_entry(jwt_pool.make_authority(id_)),
        longest=timedelta(hours=1),
        overlap=timedelta(seconds=1),
    )
    await trio.sleep(2.5)
    now = file.current().at(time.time())
    after = now.sign({"sub": "x"})
    published = jwt.PyJWKSet.from_dict(now.jwks())
    kids = [jwt.get_unverified_header(token)["kid"] for token in (before, after)]
    assert kids[0] != kids[1]
    for token, kid in zip((before, after), kids, strict=True):
        assert jwt.decode(token, published[kid], algorithms=["ES256"])["sub"] == "x"
