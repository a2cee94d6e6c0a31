"""Promise: a bearer token lets in whom its provider vouches for, as what policies say of them, and nobody else.

A real api role, real little OpenID providers over HTTPS, and the official C-core client.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import jwt
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from grpclib.health.v1 import health_pb2

from ate import names
from ate.api.access import audit
from ate.api.access.authentication import Authentication, JwtProvider
from ate.cli.client import connect_by_token
from ate.cli.main import main
from ate.errors import Unauthenticated, Unavailable
from ate.identity.ca import CaPool, make_authority
from ate.proto import ateapi_pb2 as pb
from tests.security.openid_provider import AUDIENCE, OpenIdProvider
from tests.system.api_peer import DOMAIN, Api, Caller, identity_of, open_api, refused
from tests.system.servers import free_port

REFETCH = 0.2
MINE, OTHER = "mine", "other"


@dataclass
class World:
    """`corp` answers; `away` does not listen; `strict` wants to see the token in `discovery_token`."""

    api: Api
    corp: OpenIdProvider
    away: OpenIdProvider
    strict: OpenIdProvider
    discovery_token: Path
    log: list[str]
    stack: ExitStack

    def caller(self, token: str | None, user: str = "") -> Caller:
        credentials = identity_of(self.api.pool, names.user_id(DOMAIN, user)).credentials if user else None
        made = Caller(self.api.port, credentials, self.api.pool.trust_bundle_pem, token=token)
        self.stack.callback(made.channel.close)
        return made


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("bearer")
    pool, token = CaPool((make_authority("corp"),)), folder / "token"
    corp, away, strict = (OpenIdProvider(name, free_port(), pool, folder) for name in ("corp", "away", "strict"))
    for provider in (corp, away, strict):
        provider.new_key("ec")
    corp.new_key("rsa", "RSA")
    strict.demanded = "first"
    token.write_text("first\n")
    log: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: log.append(f"{record.getMessage()} {record.__dict__.get('fields')}")  # type: ignore[method-assign]
    logger = logging.getLogger("ate.api")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    authentication = Authentication(
        tuple(
            JwtProvider(
                each.name, each.issuer, (AUDIENCE, "ate-too"), each.authority, token if each is strict else None
            )
            for each in (corp, away, strict)
        ),
        refetch=REFETCH,
    )
    with ExitStack() as stack:
        stack.enter_context(corp.serving())
        stack.enter_context(strict.serving())
        api = stack.enter_context(
            open_api(folder, authentication=authentication, initial_owners=("jwt:corp:root", "user:root"))
        )
        made = World(api, corp, away, strict, token, log, stack)
        root = made.caller(corp.token("root"))
        for space in (MINE, OTHER):
            root("CreateAtespace", atespace=pb.Atespace(metadata=pb.ResourceMetadata(name=space)))
        policy = pb.AccessPolicy(metadata=pb.ResourceMetadata(atespace=MINE, name="default"))
        policy.bindings.add(role="viewer", members=["jwt:corp:ann", "jwt:corp:sub:with:colons"])
        root("CreateAtespaceAccessPolicy", atespace=pb.ObjectRef(name=MINE), access_policy=policy)
        yield made
    logger.removeHandler(handler)
    logger.setLevel(level)


# -- tokens that count ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"kid": "rsa"},
        {"aud": "ate-too"},
        {"aud": ["another", AUDIENCE]},
        {"subject": "sub:with:colons"},
        {"exp": int(time.time()) + 10**9},
        {"iat": None, "nbf": None},
    ],
    ids=str,
)
def test_a_token_that_counts_is_its_subject_with_the_roles_policies_give(world: World, change: dict[str, str]) -> None:
    world.caller(world.corp.token(**change))("ListActors", atespace=MINE)


def test_clocks_may_be_off_by_less_than_the_leeway(world: World) -> None:
    now = int(time.time())
    world.caller(world.corp.token(exp=now - 27))("ListActors", atespace=MINE)
    world.caller(world.corp.token(nbf=now + 27, iat=now + 27))("ListActors", atespace=MINE)


def test_roles_are_enforced_and_the_audit_log_has_the_member(world: World) -> None:
    ann = world.caller(world.corp.token("ann"))
    with refused("PERMISSION_DENIED", "jwt:corp:ann is not viewer in atespace other"):
        ann("ListActors", atespace=OTHER)
    with refused("PERMISSION_DENIED", "jwt:corp:ann is not owner globally"):
        ann("CreateAtespace", atespace=pb.Atespace(metadata=pb.ResourceMetadata(name="anns")))
    with refused("PERMISSION_DENIED", "jwt:corp:ann may not call ateapi.WorkerService/SetWorkerCapacity"):
        ann("SetWorkerCapacity")
    with refused("PERMISSION_DENIED", "jwt:corp:user:root is not owner"):
        world.caller(world.corp.token("user:root"))("DeleteAtespace", atespace=pb.ObjectRef(name=OTHER))
    records = [record for _, _, record in audit.read(world.api.folder / "audit")]
    assert any(r["caller"] == "jwt:corp:root" and r["allowed"] and r["object"] == "atespace mine" for r in records)
    assert any(r["caller"] == "jwt:corp:ann" and not r["allowed"] for r in records)


def test_a_subject_of_another_provider_is_somebody_else(world: World) -> None:
    with refused("PERMISSION_DENIED", "jwt:strict:ann is not viewer"):
        world.caller(world.strict.token("ann"))("ListActors", atespace=MINE)


def test_health_is_told_to_verified_callers(world: World) -> None:
    def check(caller: Caller) -> int:
        ask = caller.channel.unary_unary(
            "/grpc.health.v1.Health/Check",
            health_pb2.HealthCheckRequest.SerializeToString,
            health_pb2.HealthCheckResponse.FromString,
        )
        return int(ask(health_pb2.HealthCheckRequest(), metadata=caller.metadata, timeout=10).status)

    assert check(world.caller(world.corp.token("nobody"))) == health_pb2.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as caught:
        check(world.caller(None))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


# -- tokens that do not count ---------------------------------------------------------------------------------------


def _part(value: object) -> str:
    raw = value if isinstance(value, bytes) else json.dumps(value).encode()
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _unsigned(corp: OpenIdProvider) -> str:
    return f"{_part({'alg': 'none', 'kid': 'ec'})}.{_part(corp.claims('root'))}."


def _signed_with_the_public_key(corp: OpenIdProvider) -> str:
    public = corp.keys["rsa"].public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[union-attr]
    body = f"{_part({'alg': 'HS256', 'kid': 'rsa', 'typ': 'JWT'})}.{_part(corp.claims('root'))}"
    return f"{body}.{_part(hmac.digest(public, body.encode(), hashlib.sha256))}"


def _forged(corp: OpenIdProvider) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    return jwt.encode(corp.claims("root"), key, "ES256", headers={"kid": "ec"})


def _with_another_payload(corp: OpenIdProvider) -> str:
    head, _, signature = corp.token().split(".")
    return f"{head}.{_part(corp.claims('root'))}.{signature}"


def _with_its_own_key(corp: OpenIdProvider) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    shown = jwt.algorithms.ECAlgorithm.to_jwk(key.public_key(), as_dict=True)
    headers = {"kid": "ec", "jwk": shown, "jku": "https://evil.example/keys", "x5u": "https://evil.example/c.pem"}
    return jwt.encode(corp.claims("root"), key, "ES256", headers=headers)


def _of_another_key_type(corp: OpenIdProvider) -> str:
    return jwt.encode(corp.claims("root"), corp.keys["ec"], "ES256", headers={"kid": "rsa"})  # type: ignore[arg-type]


REFUSED: dict[str, tuple[Callable[[OpenIdProvider], str], str]] = {
    "expired a second beyond the leeway": (lambda corp: corp.token("root", exp=int(time.time()) - 31), "has expired"),
    "not yet valid (nbf)": (lambda corp: corp.token("root", nbf=int(time.time()) + 35), "not valid yet"),
    "issued in the future": (lambda corp: corp.token("root", iat=int(time.time()) + 35), "not valid yet"),
    "without an end": (lambda corp: corp.token("root", exp=None), "no claim exp"),
    "with an end that is no number": (lambda corp: corp.token("root", exp="soon"), "out of form"),
    "with an end that is infinite": (lambda corp: corp.token("root", exp=float("inf")), "out of form"),
    "for another audience": (lambda corp: corp.token("root", aud=["ate2"]), "for another audience (aud) than ate or"),
    "for no audience": (lambda corp: corp.token("root", aud=None), "no claim aud"),
    "of another issuer": (lambda corp: corp.token("root", iss=corp.issuer + "/"), "issuer (iss) is none"),
    "of no issuer": (lambda corp: corp.token("root", iss=None), "issuer (iss) is none"),
    "of an issuer that is no text": (lambda corp: _forged_issuer(corp), "issuer (iss) is none"),
    "without a subject": (lambda corp: corp.token("root", sub=None), "no claim sub"),
    "with an empty subject": (lambda corp: corp.token(""), "subject (sub) is not"),
    "with a subject that forges lines": (lambda corp: corp.token("root\nroot"), "subject (sub) is not"),
    "with a subject that is no text": (lambda corp: _numbered(corp), "subject (sub) is not"),
    "unsigned": (_unsigned, "algorithm (alg) that is none of"),
    "signed by HS256 with the public key": (_signed_with_the_public_key, "algorithm (alg) that is none of"),
    "signed by somebody else": (_forged, "signature does not fit"),
    "with another payload": (_with_another_payload, "signature does not fit"),
    "that brings its own key": (_with_its_own_key, "signature does not fit"),
    "with the algorithm of another key": (_of_another_key_type, "not the one of the key"),
    "without a key id": (
        lambda corp: jwt.encode(corp.claims(), corp.keys["ec"], "ES256"),  # type: ignore[arg-type]
        "with which key",
    ),
    "garbage": (lambda corp: "garbage", "no JWT"),
    "dots": (lambda corp: "..", "no JWT"),
    "a list": (lambda corp: f"{_part([])}.{_part([])}.{_part(b'x')}", "no JWT"),
    "nested deep": (lambda corp: f"{_part(b'[' * 5000)}.{_part({})}.", "no JWT"),
    "without its signature": (lambda corp: corp.token("root").rpartition(".")[0] + ".", "does not fit"),
    "cut off": (lambda corp: corp.token("root").rpartition(".")[0], "no JWT"),
    "twice": (lambda corp: f"{corp.token('root')} {corp.token('root')}", "no JWT"),
    "oversize": (lambda corp: corp.token("root", filler="x" * 8192), "longer than 8192"),
}


def _forged_issuer(corp: OpenIdProvider) -> str:
    return f"{_part({'alg': 'ES256', 'kid': 'ec'})}.{_part({**corp.claims(), 'iss': [corp.issuer]})}.{_part(b'x' * 64)}"


def _numbered(corp: OpenIdProvider) -> str:
    head, body = _part({"alg": "ES256", "kid": "ec"}), _part({**corp.claims(), "sub": 7})
    algorithm = jwt.get_algorithm_by_name("ES256")
    return f"{head}.{body}.{_part(algorithm.sign(f'{head}.{body}'.encode(), corp.keys['ec']))}"


@pytest.mark.parametrize("what", REFUSED)
def test_a_token_that_does_not_count_is_refused_in_words_that_do_not_repeat_it(what: str, world: World) -> None:
    make, told = REFUSED[what]
    token = make(world.corp)
    with refused("UNAUTHENTICATED", told) as caught:
        world.caller(token)("ListAtespaces")
    assert not any(len(part) > 8 and part in caught.value.details() for part in token.split("."))


@pytest.mark.parametrize(
    "metadata",
    [
        [],
        [("authorization", "Bearer")],
        [("authorization", "Basic cm9vdDpyb290")],
        [("authorization", "{token}")],
        [("authorization", "Bearer {token}"), ("authorization", "Bearer {token}")],
        [("x-authorization", "Bearer {token}")],
    ],
    ids=str,
)
def test_a_call_without_one_token_in_its_place_is_nobodys(metadata: list[tuple[str, str]], world: World) -> None:
    token = world.corp.token("root")
    caller = world.caller(None)
    caller.metadata = tuple((name, value.replace("{token}", token)) for name, value in metadata)
    with refused("UNAUTHENTICATED"):
        caller("ListAtespaces")


# -- keys that change, providers that are away ----------------------------------------------------------------------


def test_a_token_of_a_key_that_was_just_published_is_accepted_and_one_of_a_withdrawn_key_in_the_end_not(
    world: World,
) -> None:
    world.corp.new_key("next")
    token = world.corp.token(kid="next")
    time.sleep(REFETCH)  # of the last fetch: that much later the next is allowed
    world.caller(token)("ListActors", atespace=MINE)
    del world.corp.keys["next"]
    time.sleep(REFETCH)
    world.corp.keys["stray"] = ec.generate_private_key(ec.SECP256R1())
    stray = world.corp.token(kid="stray")
    del world.corp.keys["stray"]
    with refused("UNAUTHENTICATED", "a key that JWT provider corp does not publish"):
        world.caller(stray)("ListActors", atespace=MINE)
    with refused("UNAUTHENTICATED", "a key that JWT provider corp does not publish"):
        world.caller(token)("ListActors", atespace=MINE)


def test_a_flood_of_unknown_keys_does_not_become_a_flood_of_fetches(world: World) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    before, began = world.corp.fetches, time.monotonic()
    for number in range(60):
        token = jwt.encode(world.corp.claims(), key, "ES256", headers={"kid": f"made-up-{number}"})
        with refused("UNAUTHENTICATED"):
            world.caller(token).once("ListActors", pb.ListActorsRequest(atespace=MINE))
    assert world.corp.fetches - before <= 1 + (time.monotonic() - began) / REFETCH


def test_a_provider_that_is_away_is_named_and_logged_once_and_counts_once_it_is_back(world: World) -> None:
    caller = world.caller(world.away.token("ann"))
    for _ in range(5):
        with refused("UNAVAILABLE", "JWT provider away cannot be read"):
            caller.once("ListActors", pb.ListActorsRequest(atespace=MINE))
        time.sleep(0.05)
    time.sleep(REFETCH)
    with refused("UNAVAILABLE", "JWT provider away"):
        caller.once("ListActors", pb.ListActorsRequest(atespace=MINE))
    assert len([line for line in world.log if "cannot be read" in line and "away" in line]) == 1
    world.caller(world.corp.token())("ListActors", atespace=MINE)  # one that is away is no matter of the others
    time.sleep(REFETCH)
    with world.away.serving(), refused("PERMISSION_DENIED", "jwt:away:ann"):
        caller.once("ListActors", pb.ListActorsRequest(atespace=MINE))
    assert len([line for line in world.log if "can be read again" in line and "away" in line]) == 1


def test_the_token_for_discovery_is_read_for_each_fetch(world: World) -> None:
    world.strict.new_key("second")
    world.strict.demanded = "second"
    caller = world.caller(world.strict.token(kid="second"))
    time.sleep(REFETCH)
    with refused("UNAVAILABLE", "JWT provider strict"):
        caller.once("ListActors", pb.ListActorsRequest(atespace=MINE))
    world.discovery_token.write_text("second\n")
    time.sleep(REFETCH)
    with refused("PERMISSION_DENIED", "jwt:strict:ann"):
        caller.once("ListActors", pb.ListActorsRequest(atespace=MINE))


# -- certificates ---------------------------------------------------------------------------------------------------


def test_of_a_certificate_and_a_token_the_certificate_counts(world: World) -> None:
    with refused("PERMISSION_DENIED", "user:nora is not"):
        world.caller(world.corp.token("root"), user="nora")("ListAtespaces")
    for token in ("garbage", world.corp.token("nobody")):
        world.caller(token, user="root")("ListAtespaces")


def test_a_bad_certificate_is_refused_in_the_handshake_whatever_the_token(world: World) -> None:
    foreign = CaPool((make_authority("foreign"),))
    shown = identity_of(foreign, names.user_id(DOMAIN, "root")).credentials
    caller = Caller(world.api.port, shown, world.api.pool.trust_bundle_pem, token=world.corp.token("root"))
    with pytest.raises(grpc.RpcError) as caught:
        caller.once("ListAtespaces", pb.ListAtespacesRequest())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    caller.channel.close()


def test_without_a_global_policy_a_token_gives_no_role_and_a_certificate_all(world: World, tmp_path: Path) -> None:
    authentication = Authentication((JwtProvider("corp", world.corp.issuer, (AUDIENCE,), world.corp.authority),))
    with open_api(tmp_path, authentication=authentication) as api:
        api.user("ListAtespaces")
        caller = Caller(api.port, None, api.pool.trust_bundle_pem, token=world.corp.token("root"))
        with refused("PERMISSION_DENIED", "jwt:corp:root is not viewer globally"):
            caller("ListAtespaces")
        caller.channel.close()


# -- the command line -----------------------------------------------------------------------------------------------


def test_the_command_line_needs_a_token_and_an_authority_only(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    token, authority = tmp_path / "token", tmp_path / "ca.pem"
    token.write_text(world.corp.token("root") + "\n")
    authority.write_text(world.api.pool.trust_bundle_pem)
    get = ["get", "atespaces", "--root", str(tmp_path / "none"), "--endpoint", f"127.0.0.1:{world.api.port}"]
    by_token = [*get, "--token-file", str(token), "--ca-file", str(authority)]
    assert main([*by_token, "--server-name", "localhost", "-o", "name"]) == 0
    assert "atespace/mine" in capsys.readouterr().out
    assert main(by_token) == 1  # the certificate has no such address
    assert "127.0.0.1" in capsys.readouterr().err
    other = tmp_path / "other.pem"
    other.write_text(CaPool((make_authority("other"),)).trust_bundle_pem)
    assert main([*get, "--token-file", str(token), "--ca-file", str(other), "--server-name", "localhost"]) == 1
    assert "certificate verify failed" in capsys.readouterr().err
    for wrong, told in {
        ("--ca-file", str(authority)): "go with --token-file",
        ("--token-file", str(tmp_path / "nothing")): "--token-file",
        ("--token-file", str(authority)): "does not hold a token",
        ("--token-file", str(token), "--ca-file", str(token)): "--ca-file",
    }.items():
        assert main([*get, *wrong]) == 2
        assert told in capsys.readouterr().err


async def test_the_command_line_reads_the_token_anew_for_each_call(world: World, tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text(world.api.pool.trust_bundle_pem)
    tokens = [world.corp.token("root"), world.corp.token("root", exp=1), world.corp.token("root")]
    with trio.fail_after(20):
        async with connect_by_token(
            f"127.0.0.1:{world.api.port}", lambda: tokens.pop(0), str(authority), "localhost"
        ) as api:
            await api.control.ListAtespaces(pb.ListAtespacesRequest())
            with pytest.raises(Unauthenticated, match="has expired"):
                await api.control.ListAtespaces(pb.ListAtespacesRequest())
            await api.control.ListAtespaces(pb.ListAtespacesRequest())
        shown: list[str] = []

        def show() -> str:
            shown.append("token")
            return "secret"

        async with connect_by_token(f"127.0.0.1:{world.api.port}", show, str(authority), "api.elsewhere") as api:
            with pytest.raises(Unavailable, match=r"api\.elsewhere"):
                await api.control.ListAtespaces(pb.ListAtespacesRequest())
