"""Promises of bearer tokens that need no server: the configuration, members, key sets, how long keys are kept."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt
import pytest
import trio
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from hypothesis import given, settings
from hypothesis import strategies as st
from jwt.algorithms import ECAlgorithm, OKPAlgorithm, RSAAlgorithm
from multidict import MultiDict

from ate.api.access import authentication, bearer, key_set, members
from ate.api.access.authentication import JwtProvider
from ate.api.access.discovery import Unreadable
from ate.api.access.key_set import VerifyingKey
from ate.api.access.provider_keys import FRESH, LONGEST, ProviderKeys
from ate.errors import InvalidArgument, Unauthenticated, Unavailable

KEY = ec.generate_private_key(ec.SECP256R1())
VERIFYING = VerifyingKey(KEY.public_key(), ("ES256",))
PROVIDER = JwtProvider("corp", "https://corp.example", ("ate",))
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)

# -- the configuration ----------------------------------------------------------------------------------------------

WHOLE = """
actorIdentityJWTProvider: kubernetes
jwtProviders:
- name: kubernetes
  issuer: https://kubernetes.default.svc
  audiences: [api.ate-system.svc]
  certificateAuthorityFile: /var/run/ca.crt
  discoveryTokenFile: /var/run/token
- {name: corp, issuer: "https://login.corp.example:8443/realms/x/", audiences: [a, b]}
"""


def test_a_file_in_the_references_form_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(WHOLE)
    found = authentication.read(tmp_path / "a.yaml")
    assert found.providers == (
        JwtProvider(
            "kubernetes",
            "https://kubernetes.default.svc",
            ("api.ate-system.svc",),
            Path("/var/run/ca.crt"),
            Path("/var/run/token"),
        ),
        JwtProvider("corp", "https://login.corp.example:8443/realms/x/", ("a", "b")),
    )


ONE = "name: corp, issuer: 'https://x.example', audiences: [a]"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "must be a mapping"),
        ("{", "not YAML"),
        ("a: 2024-99-99", "not YAML"),
        ("jwtProviders: []", "jwtProviders: must be a list of at least one"),
        ("jwtProviders: {}", "jwtProviders: must be a list"),
        ("jwtProviders: [1]", "jwtProviders[0]: must be a mapping"),
        (f"jwtProvider: 1\njwtProviders: [{{{ONE}}}]", "jwtProvider: is not one of"),
        (f"jwtProviders: [{{{ONE}, typo: 1}}]", "jwtProviders[0].typo: is not one of name, issuer"),
        (f"jwtProviders: [{{{ONE}, jwksURL: 'https://x'}}]", "jwtProviders[0].jwksURL"),
        ("jwtProviders: [{issuer: 'https://x', audiences: [a]}]", "jwtProviders[0].name: is required"),
        ("jwtProviders: [{name: 'a:b', issuer: 'https://x', audiences: [a]}]", "jwtProviders[0].name: 'a:b' is not"),
        ("jwtProviders: [{name: a, issuer: 'https://x', audiences: []}]", "jwtProviders[0].audiences"),
        ("jwtProviders: [{name: a, issuer: 'https://x', audiences: a}]", "jwtProviders[0].audiences"),
        ("jwtProviders: [{name: a, issuer: 'https://x', audiences: [1]}]", "jwtProviders[0].audiences[0]"),
        (f"jwtProviders: [{{{ONE}}}, {{name: corp, issuer: 'https://y', audiences: [a]}}]", "jwtProviders[1].name"),
        (f"jwtProviders: [{{{ONE}}}, {{name: b, issuer: 'https://x.example', audiences: [a]}}]", "[1].issuer: 'https:"),
        (f"actorIdentityJWTProvider: other\njwtProviders: [{{{ONE}}}]", "actorIdentityJWTProvider: 'other' is none"),
        (f"actorIdentityJWTProvider: [1]\njwtProviders: [{{{ONE}}}]", "actorIdentityJWTProvider"),
        (f"jwtProviders: [{{{ONE}, certificateAuthorityFile: [1]}}]", "certificateAuthorityFile: must be a text"),
    ],
)
def test_what_is_wrong_is_told_with_file_and_field(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(InvalidArgument) as caught:
        authentication.read(tmp_path / "a.yaml")
    assert told in caught.value.message and "a.yaml" in caught.value.message


@pytest.mark.parametrize(
    "issuer",
    [
        "http://x",
        "x",
        "https://",
        "https://x?a",
        "https://x#a",
        "https://u@x",
        "https://x:0",
        "https://x:p",
        "https://[x",
    ],
)
def test_an_issuer_is_an_https_url_without_query_fragment_and_user(issuer: str) -> None:
    with pytest.raises(InvalidArgument, match=r"jwtProviders\[0\]\.issuer"):
        authentication.parse({"jwtProviders": [{"name": "a", "issuer": issuer, "audiences": ["a"]}]})


@settings(max_examples=40)
@given(JUNK)
def test_any_document_is_read_or_refused(document: Any) -> None:
    for given_ in (document, {"jwtProviders": document}, {"jwtProviders": [document]}):
        with pytest.raises(InvalidArgument):
            authentication.parse(given_)


# -- members --------------------------------------------------------------------------------------------------------

LABELS = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
SUBJECTS = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=255)


@given(LABELS, SUBJECTS, LABELS, SUBJECTS)
def test_two_callers_are_never_one_member(provider: str, subject: str, other: str, others: str) -> None:
    one, two = members.jwt(provider, subject), members.jwt(other, others)
    assert members.is_member(one) and not members.has_certificate(one) and len(one) <= 512
    assert (one == two) == ((provider, subject) == (other, others))
    assert one != members.user(subject)


@pytest.mark.parametrize(
    "text", ["", "user:", "jwt:", "jwt:corp", "jwt:corp:", "jwt::x", "jwt:A:x", "group:x", "JWT:a:b"]
)
def test_what_can_be_nobody_is_no_member(text: str) -> None:
    assert not members.is_member(text)


# -- key sets and tokens --------------------------------------------------------------------------------------------


def jwk(key: Any, **fields: Any) -> dict[str, Any]:
    form: Any = {rsa.RSAPrivateKey: RSAAlgorithm, ec.EllipticCurvePrivateKey: ECAlgorithm}
    found = next((algorithm for kind, algorithm in form.items() if isinstance(key, kind)), OKPAlgorithm)
    return {**found.to_jwk(key.public_key(), as_dict=True), **fields}


def test_keys_verify_what_their_type_and_owner_allow() -> None:
    big, small = rsa.generate_private_key(65537, 2048), rsa.generate_private_key(65537, 1024)
    private = {**ECAlgorithm.to_jwk(KEY, as_dict=True), "kid": "private"}
    entries = [
        jwk(big, kid="any-rsa"),
        jwk(big, kid="ps256", alg="PS256"),
        jwk(ec.generate_private_key(ec.SECP384R1()), kid="p384"),
        jwk(ed25519.Ed25519PrivateKey.generate(), kid="ed", alg="EdDSA"),
        jwk(KEY, kid="lies", alg="RS256"),
        jwk(KEY, kid="for-encryption", use="enc"),
        jwk(KEY),
        jwk(KEY, kid=7),
        jwk(ec.generate_private_key(ec.SECP256K1()), kid="k256"),
        jwk(small, kid="too-short"),
        private,
        {"kty": "oct", "k": "c2VjcmV0", "kid": "symmetric", "alg": "HS256"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "off-curve"},
        "junk",
    ]
    found = key_set.read({"keys": entries})
    assert {kid: key.algorithms for kid, key in found.items()} == {
        "any-rsa": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
        "ps256": ("PS256",),
        "p384": ("ES384",),
        "ed": ("EdDSA",),
    }


@given(JUNK, st.sampled_from(["RSA", "EC", "OKP", "oct"]))
def test_any_key_set_is_read_or_refused(junk: Any, kty: str) -> None:
    entry = {"kty": kty, "kid": "x", "n": junk, "e": junk, "crv": junk, "x": junk, "y": junk, "alg": junk, "use": "sig"}
    for document in (junk, {"keys": junk}, {"keys": [junk]}, {"keys": [entry]}):
        with pytest.raises(ValueError):
            key_set.read(document)


@given(
    st.text() | st.binary().map(lambda raw: raw.decode("latin-1")), st.sampled_from(["", "Bearer ", "bearer ", "x "])
)
def test_any_header_is_a_token_or_refused(text: str, scheme: str) -> None:
    with pytest.raises(Unauthenticated):
        bearer.unverified(bearer.token_of(MultiDict({"authorization": scheme + text})))


def signed(claims: Mapping[str, Any]) -> str:
    """With claims that PyJWT itself would not encode, too."""
    return jwt.PyJWS().encode(json.dumps(claims).encode(), KEY, "ES256", headers={"kid": "k"})


def claims() -> dict[str, Any]:
    now = int(time.time())
    return {"iss": PROVIDER.issuer, "sub": "ann", "aud": "ate", "exp": now + 60, "iat": now, "nbf": now}


@given(st.data())
def test_a_token_with_any_character_changed_does_not_count(data: st.DataObject) -> None:
    token = signed(claims())
    assert bearer.verified(token, VERIFYING, PROVIDER) == "jwt:corp:ann"
    at = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.sampled_from("abcXYZ019-_.= ").filter(lambda character: character != token[at]))
    with pytest.raises(Unauthenticated):
        bearer.verified(token[:at] + other + token[at + 1 :], VERIFYING, PROVIDER)


@given(st.sampled_from(["iss", "sub", "aud", "exp", "iat", "nbf", "jti"]), JUNK)
def test_claims_full_of_anything_are_refused_or_mean_what_they_say(name: str, junk: Any) -> None:
    try:
        member = bearer.verified(signed({**claims(), name: junk}), VERIFYING, PROVIDER)
    except Unauthenticated:
        return
    assert name in ("iat", "nbf", "exp", "jti") or member == f"jwt:corp:{junk}"


# -- how long keys are kept -----------------------------------------------------------------------------------------


class Source:
    """Keys that can be read or not; takes a second."""

    def __init__(self) -> None:
        self.keys: dict[str, VerifyingKey] = {"old": VERIFYING}
        self.fetches, self.away = 0, False

    async def __call__(self) -> Mapping[str, VerifyingKey]:
        self.fetches += 1
        await trio.sleep(1)
        if self.away:
            raise Unreadable("it is away")
        return dict(self.keys)


async def test_tokens_of_an_unknown_key_share_one_fetch_and_those_soon_after_start_none(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    source = Source()
    keys = ProviderKeys("corp", source, nursery, refetch=10)
    found = []

    async def find() -> None:
        found.append(await keys.find("old"))

    async with trio.open_nursery() as many:
        for _ in range(20):
            many.start_soon(find)
    assert len(found) == 20 and source.fetches == 1
    source.keys["new"] = VERIFYING
    with pytest.raises(Unauthenticated, match="does not publish"):
        await keys.find("new")
    assert source.fetches == 1
    await trio.sleep(10)
    assert await keys.find("new") and source.fetches == 2


async def test_keys_outlast_a_providers_outage_for_their_time_and_not_longer(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    source = Source()
    keys = ProviderKeys("corp", source, nursery, refetch=10)
    await keys.find("old")
    source.away = True
    began = trio.current_time()
    while trio.current_time() < began + LONGEST - 60:
        before = trio.current_time()
        assert await keys.find("old")
        assert trio.current_time() == before  # nobody waits for a provider whose key is known
        await trio.sleep(20)
    with pytest.raises(Unavailable, match="JWT provider corp"):
        await keys.find("other")
    await trio.sleep(60)
    with pytest.raises(Unavailable, match="JWT provider corp"):
        await keys.find("old")
    source.away = False
    await trio.sleep(2)
    assert await keys.find("old")


async def test_a_withdrawn_key_is_gone_once_the_keys_are_not_fresh(
    nursery: trio.Nursery, autojump_clock: trio.testing.MockClock
) -> None:
    source = Source()
    keys = ProviderKeys("corp", source, nursery, refetch=10)
    await keys.find("old")
    source.keys = {"new": VERIFYING}
    await trio.sleep(FRESH)
    assert await keys.find("old")  # and has them read again
    await trio.sleep(2)
    with pytest.raises(Unauthenticated):
        await keys.find("old")
