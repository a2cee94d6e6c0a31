"""Promise: whoever knows the issuer verifies actors' tokens by discovery with standard tools, in a rotation too."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import jwt
import pytest
import trio

from ate.errors import FailedPrecondition
from ate.identity import actors, jwt_pool, rotation
from ate.identity.broker import ACTOR_JWT_POOL, BrokerConfig, run_broker
from ate.identity.openid import OpenIdConfig
from ate.names import Ref
from tests.system.servers import free_port

ACTOR = actors.ActorIdentity(Ref("demo", "a"), "00000000-0000-4000-8000-000000000000")


@asynccontextmanager
async def broker(folder: Path, certificate: Path | None = None) -> AsyncIterator[str]:
    """A broker that serves keys; its issuer."""
    port = free_port()
    issuer = f"https://localhost:{port}"
    config = BrokerConfig(folder, openid=OpenIdConfig("127.0.0.1", port, issuer, certificate))
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(run_broker, config, stop))
        yield issuer
        stop.set()


async def fetch(url: str, trust: Path | str) -> tuple[dict[str, Any], str]:
    """(document, Cache-Control)."""

    def get() -> tuple[dict[str, Any], str]:
        with urllib.request.urlopen(url, context=ssl.create_default_context(cafile=str(trust))) as answer:
            return json.loads(answer.read()), answer.headers["Cache-Control"]

    return await trio.to_thread.run_sync(get)


async def verify(issuer: str, trust: Path, token: str) -> dict[str, Any]:
    """As any relying party does: discovery, key set, signature, issuer and audience."""
    found, _ = await fetch(f"{issuer}/.well-known/openid-configuration", trust)
    assert found["issuer"] == issuer

    def check() -> dict[str, Any]:
        context = ssl.create_default_context(cafile=str(trust))
        key = jwt.PyJWKClient(found["jwks_uri"], ssl_context=context).get_signing_key_from_jwt(token)
        algorithms = found["id_token_signing_alg_values_supported"]
        claims: dict[str, Any] = jwt.decode(token, key, algorithms=algorithms, audience="vault", issuer=issuer)
        return claims

    return await trio.to_thread.run_sync(check)


async def test_a_token_verifies_by_discovery_before_during_and_after_a_rotation(tmp_path: Path) -> None:
    async with broker(tmp_path) as issuer:
        path, trust = tmp_path / ACTOR_JWT_POOL, tmp_path / "trust-bundle.pem"
        pool = jwt_pool.open_pool(path)
        old, _ = actors.token(pool.current().at(time.time()), ACTOR, issuer, ["vault"])
        assert (await verify(issuer, trust, old))["sub"] == "atespaces:demo:actors:a"
        make = lambda id_: jwt_pool.to_entry(jwt_pool.make_authority(id_))  # noqa: E731
        longest, overlap = timedelta(hours=1), timedelta(seconds=2)
        rotation.rotate(path, jwt_pool.LIST, make, longest=longest, overlap=overlap)
        await trio.sleep(1.5)
        published, cached = await fetch(f"{issuer}/openid/v1/jwks", trust)
        assert len(published["keys"]) == 2 and "max-age" in cached
        await trio.sleep(2.5)
        new, _ = actors.token(pool.current().at(time.time()), ACTOR, issuer, ["vault"])
        assert jwt.get_unverified_header(new)["kid"] != jwt.get_unverified_header(old)["kid"]
        for token in (old, new):
            await verify(issuer, trust, token)
        with pytest.raises(jwt.InvalidAudienceError):
            actors_token, _ = actors.token(pool.current().at(time.time()), ACTOR, issuer, ["somebody else"])
            await verify(issuer, trust, actors_token)
        with pytest.raises(jwt.InvalidIssuerError):
            foreign, _ = actors.token(pool.current().at(time.time()), ACTOR, "https://evil.example", ["vault"])
            await verify(issuer, trust, foreign)


async def test_nothing_else_is_served(tmp_path: Path) -> None:
    async with broker(tmp_path) as issuer:
        for path in ("/", "/openid/v1/jwks/", "/../actor-jwt-pool.json", "/actor-jwt-pool.json"):
            with pytest.raises(urllib.error.HTTPError) as caught:
                await fetch(issuer + path, tmp_path / "trust-bundle.pem")
            assert caught.value.code == 404
        served, _ = await fetch(f"{issuer}/openid/v1/jwks", tmp_path / "trust-bundle.pem")
        assert all(set(key) <= {"kty", "crv", "x", "y", "n", "e", "kid", "alg", "use"} for key in served["keys"])


async def test_a_certificate_that_is_none_is_named_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("junk")
    with pytest.raises(BaseExceptionGroup) as caught:
        async with broker(tmp_path / "b", tmp_path / "cert.pem"):
            pass
    assert caught.group_contains(FailedPrecondition, match=r"cert\.pem")
