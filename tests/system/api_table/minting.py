"""Actors' credentials: what is in them, who gets them, and that every refusal sounds the same."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from functools import partial
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509 import verification

from ate.identity import ca, jwt_pool
from ate.identity.actors import ACTOR_IDENTITY_OID
from ate.proto import ateapi_pb2 as pb
from tests.system.api_peer import Api, Caller, refused
from tests.system.api_table.lifecycle import STATES
from tests.system.api_table.makers import add_actor, add_running, ref_of
from tests.system.api_table.resources import BAD_SHORT, BAD_UUID
from tests.system.api_table.rows import add, row

AUDIENCE = ["https://vault.example", "b"]
TOKENS = ("MintActorJWT", "MintJWT", "MintJwtSvid")
FLAT = ("MintJWT", "MintCert", "MintJwtSvid")
"""Those that name the actor by two fields."""
CERTIFICATES = ("MintActorCertificate", "MintCert", "MintAteomActorCertificate")
NO = "permission denied"
"""The whole message of every refusal."""


def signing_request(key: Any = None) -> bytes:
    key = key or ec.generate_private_key(ec.SECP256R1())
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    signed = builder.sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256())
    return signed.public_bytes(Encoding.DER)


def fields_of(rpc: str, actor: pb.Actor) -> dict[str, Any]:
    """A good request for the actor's credential."""
    metadata = actor.metadata
    name: dict[str, Any] = (
        {"atespace": metadata.atespace, "actor_name": metadata.name} if rpc in FLAT else {"actor": ref_of(actor)}
    )
    what = {"audience": AUDIENCE} if rpc in TOKENS else {"certificate_signing_request": signing_request()}
    return {**name, "actor_uid": metadata.uid, **what}


def denied(caller: Caller, rpc: str, **fields: Any) -> None:
    with refused("PERMISSION_DENIED") as told:
        caller(rpc, **fields)
    assert told.value.details() == NO


def token(rpc: str, api: Api) -> None:
    actor = add_running(api)
    for seconds, lifetime in ((0, 900), (300, 300), (3600, 3600)) if rpc != "MintJWT" else ((None, 900),):
        extra = {} if seconds is None else {"expiration_seconds": seconds}
        reply = api.atelet(rpc, **fields_of(rpc, actor), **extra)
        signed, expires = (
            (reply.token, reply.expires_at_unix)
            if rpc == "MintJwtSvid"
            else (reply.actor_jwt, reply.expires_at.seconds)
        )
        header = jwt.get_unverified_header(signed)
        keys = jwt.PyJWKSet.from_dict(jwt_pool.open_pool(api.minting.jwt_pool).current().jwks())
        claims = jwt.decode(signed, keys[header["kid"]], algorithms=["ES256"], audience=AUDIENCE[0])
        own = f"atespaces:{actor.metadata.atespace}:actors:{actor.metadata.name}"
        if rpc == "MintJwtSvid":
            own = f"spiffe://substrate-actor.local/atespace/{actor.metadata.atespace}/actor/{actor.metadata.name}"
        assert claims["sub"] == own
        assert claims["iss"] == "https://api.ate-system.svc" and claims["aud"] == AUDIENCE
        assert claims["ate.dev"] == {
            "atespace": actor.metadata.atespace, "actorName": actor.metadata.name, "actorUID": actor.metadata.uid,
        }  # fmt: skip
        assert claims["exp"] - claims["iat"] == lifetime and claims["nbf"] == claims["iat"] - 300
        assert expires == claims["exp"]
        assert uuid.UUID(claims["jti"])


def certificate(rpc: str, api: Api) -> None:
    actor = add_running(api)
    for key in (ec.generate_private_key(ec.SECP384R1()), ed25519.Ed25519PrivateKey.generate(), _rsa(2048)):
        fields = {**fields_of(rpc, actor), "certificate_signing_request": signing_request(key)}
        chain = [x509.load_der_x509_certificate(der) for der in api.atelet(rpc, **fields).actor_certificates]
        root = ca.load(api.minting.ca_pool).authorities[0].root
        store = verification.Store([root])
        verified = verification.PolicyBuilder().store(store).build_client_verifier().verify(chain[0], chain[1:])
        where = f"{actor.metadata.atespace}/actor/{actor.metadata.name}"
        expected = f"spiffe://substrate-actor.local/atespace/{where}"
        told = {"Atespace": actor.metadata.atespace, "ActorName": actor.metadata.name, "ActorUid": actor.metadata.uid}
        if rpc == "MintAteomActorCertificate":
            pair = f"{actor.metadata.atespace}/{actor.metadata.name}"
            expected = f"spiffe://substrate-actor.local/ateom-for-actor/{pair}"
            told["Purpose"] = "atunnel"
        assert verified.subjects == [x509.UniformResourceIdentifier(expected)]
        leaf = chain[0]
        assert leaf.public_key() == key.public_key()
        assert leaf.not_valid_after_utc - leaf.not_valid_before_utc <= timedelta(hours=1, minutes=5)
        extension = leaf.extensions.get_extension_for_oid(ACTOR_IDENTITY_OID).value
        assert isinstance(extension, x509.UnrecognizedExtension) and json.loads(extension.value) == told


@row("GetActorTrust", "gives whoever has one of our certificates what verifies actors' credentials")
def _trust(api: Api) -> None:
    actor = add_running(api)
    for caller in (api.user, api.atelet, api.router, api.controller):
        trust = caller("GetActorTrust")
        assert trust.trust_domain == "substrate-actor.local" and trust.issuer == "https://api.ate-system.svc"
        token = api.atelet("MintActorJWT", **fields_of("MintActorJWT", actor)).actor_jwt
        keys = jwt.PyJWKSet.from_dict(json.loads(trust.jwks))
        jwt.decode(token, keys[jwt.get_unverified_header(token)["kid"]], algorithms=["ES256"], audience="b")
        chain = api.atelet("MintActorCertificate", **fields_of("MintActorCertificate", actor)).actor_certificates
        store = verification.Store(x509.load_pem_x509_certificates(trust.trust_bundle_pem.encode()))
        leaf = x509.load_der_x509_certificate(chain[0])
        verification.PolicyBuilder().store(store).build_client_verifier().verify(leaf, [])


def malformed(rpc: str, api: Api) -> None:
    good = fields_of(rpc, add_running(api))
    names = ["actor_uid"]
    if "actor" in good:
        for bad in BAD_SHORT:
            with refused("INVALID_ARGUMENT", "actor.name", "actor.atespace"):
                api.atelet(rpc, **{**good, "actor": pb.ObjectRef(atespace=bad, name=bad)})
        names.append("actor")
    else:
        for bad in BAD_SHORT:
            with refused("INVALID_ARGUMENT", "actor_name", "atespace"):
                api.atelet(rpc, **{**good, "atespace": bad, "actor_name": bad})
        names += ["atespace", "actor_name"]
    for bad in BAD_UUID:
        with refused("INVALID_ARGUMENT", "actor_uid"):
            api.atelet(rpc, **{**good, "actor_uid": bad})
    with refused("INVALID_ARGUMENT", *names, *(["audience"] if rpc in TOKENS else [])):
        api.atelet(rpc)


def audiences(rpc: str, api: Api) -> None:
    good = fields_of(rpc, add_running(api))
    for bad in ([], [""], ["a"] * 17, ["a" * 513], ["a", "b\0"]):
        with refused("INVALID_ARGUMENT", "audience"):
            api.atelet(rpc, **{**good, "audience": bad})
    api.atelet(rpc, **{**good, "audience": ["a" * 512] * 16})


def expirations(rpc: str, api: Api) -> None:
    good = fields_of(rpc, add_running(api))
    for bad in (-1, 1, 299, 3601, 1 << 40):
        with refused("INVALID_ARGUMENT", "expiration_seconds"):
            api.atelet(rpc, **good, expiration_seconds=bad)


def signing_requests(rpc: str, api: Api) -> None:
    good = fields_of(rpc, add_running(api))
    forged = bytearray(signing_request())
    forged[-1] ^= 1
    for bad in (b"", b"junk", bytes(16385), bytes(forged), signing_request(_rsa(1024))):
        with refused("INVALID_ARGUMENT", "certificate_signing_request"):
            api.atelet(rpc, **{**good, "certificate_signing_request": bad})


def replayed(rpc: str, api: Api) -> None:
    first, second = add_running(api), add_running(api)
    fields = fields_of(rpc, first)
    api.atelet(rpc, **fields)
    denied(api.atelet, rpc, **fields)
    again = {"certificate_signing_request": fields["certificate_signing_request"]}
    denied(api.atelet, rpc, **{**fields_of(rpc, second), **again})


def liars(rpc: str, api: Api) -> None:
    actor, gone = add_running(api), add_running(api)
    denied(api.far_atelet, rpc, **fields_of(rpc, actor))
    with refused("PERMISSION_DENIED"):
        api.homeless_atelet(rpc, **fields_of(rpc, actor))
    for forged in (
        pb.ResourceMetadata(atespace=actor.metadata.atespace, name="nobody", uid=actor.metadata.uid),
        pb.ResourceMetadata(atespace="nowhere", name=actor.metadata.name, uid=actor.metadata.uid),
        pb.ResourceMetadata(atespace=actor.metadata.atespace, name=actor.metadata.name, uid=str(uuid.uuid4())),
        pb.ResourceMetadata(atespace=actor.metadata.atespace, name=actor.metadata.name, uid=gone.metadata.uid),
    ):
        denied(api.atelet, rpc, **fields_of(rpc, pb.Actor(metadata=forged)))
    api.user("DeleteActor", actor=ref_of(gone), any_state=True)
    denied(api.atelet, rpc, **fields_of(rpc, gone))
    namesake = add_actor(api, metadata=pb.ResourceMetadata(atespace=gone.metadata.atespace, name=gone.metadata.name))
    denied(api.atelet, rpc, **fields_of(rpc, gone))
    with refused("FAILED_PRECONDITION", "not running"):
        api.atelet(rpc, **fields_of(rpc, namesake))


def asleep(rpc: str, state: str, api: Api) -> None:
    with STATES[state](api) as actor, refused("FAILED_PRECONDITION", actor.metadata.name, "not running"):
        api.atelet(rpc, **fields_of(rpc, actor))


def _rsa(bits: int) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


for name in TOKENS:
    add(name, "gives a token of the actor that the published keys verify", partial(token, name))
    add(name, "1..16 audiences of at most 512 characters", partial(audiences, name))
for name in CERTIFICATES:
    add(name, "gives a certificate of the actor, for the key of the request, for an hour", partial(certificate, name))
    add(name, "what is no signing request of a strong key is INVALID_ARGUMENT", partial(signing_requests, name))
    add(name, "a signing request serves once", partial(replayed, name))
for name in (*TOKENS, *CERTIFICATES):
    add(name, "what is missing or malformed is INVALID_ARGUMENT, all in one error", partial(malformed, name))
    add(name, "an actor that the caller's node does not run is PERMISSION_DENIED without detail", partial(liars, name))
    for state in STATES:
        if state != "RUNNING":
            add(name, f"an actor that is {state} is FAILED_PRECONDITION", partial(asleep, name, state))
for name in ("MintActorJWT", "MintJwtSvid"):
    add(name, "expiration_seconds is 300..3600, 15 minutes when left out", partial(expirations, name))
