"""Promises of CA and JWT pools: their file formats, rotation without a restart, and what their keys are good for."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jwt
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from ate.errors import FailedPrecondition
from ate.identity import actors, ca, jwt_pool, keys
from ate.identity.tls import Credentials, Identity
from ate.names import Ref
from tests.unit.test_identity import handshake

ACTOR = actors.ActorIdentity(Ref("demo", "a"), "00000000-0000-4000-8000-000000000000")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def token(pool: jwt_pool.JwtPool) -> str:
    return actors.token(pool, ACTOR, "https://issuer", ["aud"])[0]


def verify(published: jwt_pool.JwtPool, token: str) -> dict[str, object]:
    by_id = jwt.PyJWKSet.from_dict(json.loads(json.dumps(published.jwks())))
    key = by_id[jwt.get_unverified_header(token)["kid"]]
    claims: dict[str, object] = jwt.decode(token, key, algorithms=[key.algorithm_name], audience="aud")
    return claims


def leaf(pool: ca.CaPool, name: str) -> Credentials:
    key = ec.generate_private_key(ec.SECP256R1())
    return Credentials(key, tuple(pool.issue(key.public_key(), f"spiffe://d/{name}")), pool.trust_bundle_pem)


@pytest.mark.parametrize("kind", keys.TYPES)
async def test_an_authority_of_every_kind_of_key_signs_what_tls_takes(kind: str) -> None:
    made = ca.CaPool((ca.make_authority("1", key_type=kind),))
    pool = ca.parse(ca.to_json(made))
    assert pool.trust_bundle_pem == made.trust_bundle_pem
    await handshake(Identity(leaf(pool, "server")), Identity(leaf(pool, "client")))


def authority_certificate(name: str, key: ca.keys.PrivateKey, issuer: str, by: ca.keys.PrivateKey) -> x509.Certificate:
    now = datetime.now(UTC)
    named = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (name, issuer)]
    return (
        x509.CertificateBuilder()
        .subject_name(named[0])
        .issuer_name(named[1])
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(by, keys.hash_for(by))
    )


async def test_what_an_intermediate_signed_is_trusted_by_its_root() -> None:
    root, between = keys.make("ED25519"), keys.make("ECDSAP256")
    certificates = [
        authority_certificate("root", root, "root", root),
        authority_certificate("mid", between, "root", root),
    ]
    authority = ca.Authority("1", between, certificates[0], (certificates[1],))
    pool = ca.parse(ca.to_json(ca.CaPool((authority,))))
    server = leaf(pool, "x")
    assert len(server.chain) == 2
    await handshake(Identity(server), Identity(leaf(pool, "y")))


def test_keys_in_pem_are_read_as_well_as_those_in_der() -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    entry = {"ID": "k", "Algorithm": "ES256", "SigningKeyPEM": pem}
    pool = jwt_pool.parse(json.dumps({"Authorities": [entry]}))
    assert verify(pool, token(pool))["sub"] == "atespaces:demo:actors:a"


@pytest.mark.parametrize("algorithm", jwt_pool.ALGORITHMS)
def test_tokens_of_every_algorithm_verify_by_the_published_keys(algorithm: str) -> None:
    pool = jwt_pool.JwtPool((jwt_pool.make_authority("1", algorithm),))
    again = jwt_pool.parse(jwt_pool.to_json(pool))
    assert verify(again, token(pool))["ate.dev"]
    assert all("d" not in key and "p" not in key for key in again.jwks()["keys"]), "a private part was published"


def test_the_first_authority_signs_and_all_are_published() -> None:
    old, new = jwt_pool.make_authority("old"), jwt_pool.make_authority("new")
    before, after = jwt_pool.JwtPool((old, new)), jwt_pool.JwtPool((new, old))
    assert jwt.get_unverified_header(token(before))["kid"] == "old"
    assert jwt.get_unverified_header(token(after))["kid"] == "new"
    for pool in (before, after):
        for signer in (before, after):
            verify(pool, token(signer))


def bad_entries() -> dict[str, str]:
    short = rsa.generate_private_key(public_exponent=65537, key_size=1024)
    made = ec.generate_private_key(ec.SECP256R1())
    good = {"ID": "1", "Algorithm": "ES256", "SigningKeyPKCS8": keys.to_entry(made)}
    odd = keys.to_entry(ec.generate_private_key(ec.SECP256K1()))
    return {
        "empty": "",
        "no list": "[]",
        "nothing listed": '{"Authorities": []}',
        "no key": json.dumps({"Authorities": [{"ID": "1", "Algorithm": "ES256"}]}),
        "junk for a key": json.dumps({"Authorities": [{**good, "SigningKeyPKCS8": base64.b64encode(b"x").decode()}]}),
        "unknown algorithm": json.dumps({"Authorities": [{**good, "Algorithm": "none"}]}),
        "key of another kind": json.dumps({"Authorities": [{**good, "Algorithm": "RS256"}]}),
        "short key": json.dumps(
            {"Authorities": [{**good, "Algorithm": "RS256", "SigningKeyPKCS8": keys.to_entry(short)}]}
        ),
        "curve nobody takes": json.dumps({"Authorities": [{**good, "SigningKeyPKCS8": odd}]}),
        "one id twice": json.dumps({"Authorities": [good, good]}),
    }


@pytest.mark.parametrize("what", bad_entries())
def test_a_pool_that_cannot_be_used_is_named(what: str, tmp_path: Path) -> None:
    path = tmp_path / "jwt-pool.json"
    path.write_text(bad_entries()[what])
    with pytest.raises(FailedPrecondition, match=r"the JWT pool .*jwt-pool\.json cannot be used"):
        jwt_pool.open_pool(path).current()


def test_a_key_that_is_not_that_of_its_certificate_is_refused(tmp_path: Path) -> None:
    pool = json.loads(ca.to_json(ca.CaPool((ca.make_authority("1"),))))
    pool["CAs"][0]["SigningKeyPKCS8"] = keys.to_entry(ec.generate_private_key(ec.SECP256R1()))
    (tmp_path / "pool").write_text(json.dumps(pool))
    with pytest.raises(FailedPrecondition, match="not that of its certificate"):
        ca.load(tmp_path / "pool")


def test_a_rotation_is_taken_up_while_running_and_half_an_edit_is_not(tmp_path: Path) -> None:
    path, clock = tmp_path / "jwt-pool.json", Clock()
    first, second = jwt_pool.make_authority("1"), jwt_pool.make_authority("2")
    path.write_text(jwt_pool.to_json(jwt_pool.JwtPool((first,))))
    file = jwt_pool.PoolFile(path, jwt_pool.parse, what="JWT pool", clock=clock)

    def ids() -> list[str]:
        clock.now += 10
        return [authority.id for authority in file.current().authorities]

    assert ids() == ["1"]
    text = jwt_pool.to_json(jwt_pool.JwtPool((second, first)))
    path.write_text(text[: len(text) // 2])
    assert ids() == ["1"], "the last good pool stays in force"
    path.unlink()
    assert ids() == ["1"]
    path.write_text(text)
    assert ids() == ["2", "1"]


def test_a_certificate_of_an_actor_is_for_the_key_that_asked() -> None:
    pool = ca.CaPool((ca.make_authority("1"),))
    key = ec.generate_private_key(ec.SECP256R1())
    csr = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([])).sign(key, hashes.SHA256())
    der = actors.certificate(pool, ACTOR, csr.public_bytes(Encoding.DER), "t.d")[0]
    made = x509.load_der_x509_certificate(der)
    assert made.public_key() == key.public_key()
    names = made.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == ["spiffe://t.d/atespace/demo/actor/a"]
