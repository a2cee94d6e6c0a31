"""Promise: an actor learns who it is and gets its credentials at its gateway, fresh after every sleep; no other."""

from __future__ import annotations

import base64
import json
import sys
import urllib.parse
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jwt
import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_der_private_key, load_pem_private_key
from cryptography.x509 import verification

from ate.errors import NotFound, PermissionDenied
from ate.identity import client, jwt_pool
from ate.identity.broker import ACTOR_JWT_POOL
from ate.identity.tls import Identity
from ate.node.support import support_channel
from ate.proto import ateapi_pb2 as pb
from ate.proto import atelet_pb2, node_pb2
from ate.proto.atelet_grpc import AteomSupportStub
from ate.proto.node_grpc import ActorCredentialsStub
from tests.system.install import REPOSITORY, Install, joined, running
from tests.system.workload import PROGRAM, PYTHON

OURS = {"ate-metadata": "true"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    folder = tmp_path_factory.mktemp("m") / "root"
    with running(folder) as process:
        yield folder, process


@asynccontextmanager
async def actor(root: tuple[Path, Any], name: str) -> AsyncIterator[Install]:
    """The install with a running actor of that name."""
    async with joined(*root) as install:
        try:
            await install.get("first")
        except NotFound:
            await install.set_up(golden=False)
            made = install.template("asks", f"file://{install.root}/objects")
            made.containers[0].command[:] = [PYTHON, "-S", "-c", PROGRAM]
            request = pb.CreateActorTemplateRequest(actor_template=made)
            await install.api.control.CreateActorTemplate(request, timeout=30)
            await install.until(lambda: install.golden("asks"), 120)
            await install.add_actor("first", "asks")
        if name != "first":
            await install.add_actor(name, "asks")
        yield install
        if name != "first":
            await install.delete(name)


async def ask(install: Install, name: str, path: str, headers: dict[str, str] | None = None, **more: str) -> Any:
    """(status, answer) of a request that the program in the sandbox makes."""
    query = urllib.parse.urlencode({"path": path, "headers": json.dumps(OURS if headers is None else headers), **more})
    status, body = await install.raw(name, f"/metadata?{query}")
    assert status == 200, body
    answer = json.loads(body)
    return answer["status"], answer["body"]


async def test_an_actor_is_told_who_it_is(root: tuple[Path, Any]) -> None:
    async with actor(root, "who") as install:
        status, told = await ask(install, "who", "/v1/identity")
        uid = (await install.get("who")).metadata.uid
        assert (status, told) == (
            200, {"atespace": "demo", "name": "who", "uid": uid, "subject": "atespaces:demo:actors:who"},
        )  # fmt: skip


async def test_its_token_verifies_by_the_published_keys_and_is_another_one_after_a_sleep(
    root: tuple[Path, Any],
) -> None:
    async with actor(root, "token") as install:
        seen = []
        for _ in range(2):
            status, told = await ask(install, "token", "/v1/token?audience=vault&audience=other&seconds=600")
            assert status == 200, told
            pool = jwt_pool.open_pool(install.root / "identity" / ACTOR_JWT_POOL).current()
            keys = jwt.PyJWKSet.from_dict(pool.jwks())
            key = keys[jwt.get_unverified_header(told["token"])["kid"]]
            claims = jwt.decode(told["token"], key, algorithms=["ES256"], audience="vault")
            assert claims["sub"] == "atespaces:demo:actors:token" and claims["aud"] == ["vault", "other"]
            assert claims["exp"] - claims["iat"] == 600 and claims["exp"] == told["expiresAt"]
            with pytest.raises(jwt.InvalidAudienceError):
                jwt.decode(told["token"], key, algorithms=["ES256"], audience="somebody else")
            again = await ask(install, "token", "/v1/token?audience=vault&audience=other&seconds=600")
            assert again == (200, told), "it is kept while it is fresh"
            seen.append(claims["jti"])
            await install.suspend("token")
        assert seen[0] != seen[1], "nothing minted before the sleep is served after it"


async def test_its_certificate_is_for_its_key_and_verifies_by_the_bundle(root: tuple[Path, Any]) -> None:
    async with actor(root, "cert") as install:
        status, told = await ask(install, "cert", "/v1/certificate")
        assert status == 200, told
        leaf, *rest = x509.load_pem_x509_certificates(told["certificates"].encode())
        key = load_pem_private_key(told["privateKey"].encode(), None)
        assert key.public_key() == leaf.public_key()
        store = verification.Store(x509.load_pem_x509_certificates(told["trustBundle"].encode()))
        verified = verification.PolicyBuilder().store(store).build_client_verifier().verify(leaf, rest)
        expected = "spiffe://substrate-actor.local/atespace/demo/actor/cert"
        assert verified.subjects == [x509.UniformResourceIdentifier(expected)]
        await install.suspend("cert")
        _, other = await ask(install, "cert", "/v1/certificate")
        assert other["privateKey"] != told["privateKey"]


async def test_what_a_program_may_have_been_talked_into_gets_nothing(root: tuple[Path, Any]) -> None:
    async with actor(root, "ssrf") as install:
        token = "/v1/token?audience=a"
        for headers in (
            {},
            {"ate-metadata": "false"},
            {**OURS, "Host": "evil.example"},
            {**OURS, "X-Forwarded-For": "1.2.3.4"},
            {**OURS, "Via": "1.1 proxy"},
        ):
            status, told = await ask(install, "ssrf", token, headers)
            assert status == 403 and "token" not in told, headers
        assert (await ask(install, "ssrf", token, method="POST"))[0] == 405


async def test_what_is_wrong_with_a_question_is_told(root: tuple[Path, Any]) -> None:
    async with actor(root, "wrong") as install:
        for path, status, words in (
            ("/", 404, "/v1/identity"),
            ("/v1/token", 400, "audience"),
            ("/v1/token?audience=", 400, "audience"),
            ("/v1/token?audience=a&seconds=1", 400, "300..3600"),
            ("/v1/token?audience=a&seconds=x", 400, "no number"),
            ("/v1/token?audience=a&scope=b", 400, "'scope'"),
            ("/v1/token?audience", 400, "malformed"),
            ("/v1/token?audience=" + "a" * 513, 400, "512"),
        ):
            found, told = await ask(install, "wrong", path)
            assert found == status and words in told["error"], (path, found, told)


async def test_nothing_else_answers_at_the_gateway(root: tuple[Path, Any]) -> None:
    async with actor(root, "door") as install:
        for port in ("22", "81", "8443"):
            status, told = await ask(install, "door", "/v1/identity", port=port)
            assert status == 0 and "refused" in told, (port, told)


async def test_a_worker_gets_credentials_of_the_actor_it_runs_and_of_no_other(root: tuple[Path, Any]) -> None:
    async with actor(root, "held") as install:
        running = await install.resume("held")
        here = running.status.worker_assignment
        workers = (await install.api.control.ListWorkers(pb.ListWorkersRequest(), timeout=30)).workers
        (other,) = [worker for worker in workers if worker.metadata.name != here.worker.name]
        request = node_pb2.MintActorTokenRequest(
            atespace="demo", actor_name="held", actor_uid=running.metadata.uid, audience=["a"]
        )
        csr = node_pb2.MintActorOwnCertificateRequest(
            atespace="demo", actor_name="held", actor_uid=running.metadata.uid, certificate_signing_request=b"x"
        )
        for uid, allowed in ((here.worker.name, True), (other.metadata.name, False)):
            wanted = client.Request(install.root / "identity", "ateom", node_name=here.node_name, pod_uid=uid)
            identity = Identity(await client.obtain(wanted))
            async with support_channel(install.root, identity, "cluster.local", here.node_name) as channel:
                stub = ActorCredentialsStub(channel)
                if allowed:
                    assert (await stub.MintActorToken(request, timeout=30)).token
                    continue
                for ask_ in (stub.MintActorToken(request, timeout=30), stub.MintActorOwnCertificate(csr, timeout=30)):
                    with pytest.raises(PermissionDenied, match=r"^permission denied$"):
                        await ask_
                older = atelet_pb2.MintActorCertificateRequest(
                    actor_atespace="demo", actor_name="held", actor_uid=running.metadata.uid
                )
                with pytest.raises(PermissionDenied, match=r"^permission denied$"):
                    await AteomSupportStub(channel).MintActorCertificate(older, timeout=30)


async def test_the_spiffe_workload_api_gives_what_stock_libraries_ask_for(root: tuple[Path, Any]) -> None:
    async with actor(root, "svid") as install:
        running = await install.resume("svid")
        pid = install.worker_pids(running.status.worker_assignment.worker.name)[-1]
        argv = ["nsenter", "-t", str(pid), "-n", sys.executable, "-m", "tests.security.workload_client", "vault"]
        done = await trio.run_process(argv, capture_stdout=True, cwd=REPOSITORY)
        told = json.loads(done.stdout)
        own = "spiffe://substrate-actor.local/atespace/demo/actor/svid"
        assert told["id"] == told["token_id"] == told["valid"] == own
        leaf = x509.load_der_x509_certificate(base64.b64decode(told["chain"]))
        assert load_der_private_key(base64.b64decode(told["key"]), None).public_key() == leaf.public_key()
        store = verification.Store([x509.load_der_x509_certificate(base64.b64decode(told["bundle"]))])
        verified = verification.PolicyBuilder().store(store).build_client_verifier().verify(leaf, [])
        assert verified.subjects == [x509.UniformResourceIdentifier(own)]
        assert told["bundles"] == list(told["jwks"]) == ["spiffe://substrate-actor.local"]
        keys = jwt.PyJWKSet.from_dict(told["jwks"]["spiffe://substrate-actor.local"])
        key = keys[jwt.get_unverified_header(told["token"])["kid"]]
        assert jwt.decode(told["token"], key, algorithms=["ES256"], audience="vault")["sub"] == own
        refused = ("no header", "another id", "no audience", "another audience", "junk")
        assert [told[what] for what in refused] == [
            "INVALID_ARGUMENT", "PERMISSION_DENIED", "INVALID_ARGUMENT", "INVALID_ARGUMENT", "INVALID_ARGUMENT",
        ]  # fmt: skip
