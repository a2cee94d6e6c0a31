"""Who a bearer token's caller is: the metadata `authorization: Bearer <JWT>` of a call, verified, as a policy's member.

PyJWT does JOSE. The token says itself who issued it and with which key; nothing else of it is believed before the
signature fits a key that this provider publishes. Refusals say what is wrong and never repeat the token.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import jwt
import trio

from ate.api.access import discovery, members
from ate.api.access.authentication import Authentication, JwtProvider
from ate.api.access.key_set import ALGORITHMS, VerifyingKey
from ate.api.access.provider_keys import ProviderKeys
from ate.asyncio_room import open_asyncio_room
from ate.errors import Unauthenticated
from ate.rpc.wire import Metadata

HEADER: Final = "authorization"
MOST_HEADER: Final = 8192
"""Characters of the header's value: tokens with many groups have four thousand."""
LEEWAY: Final = 30.0
"""Seconds that a provider's clock may be off."""
_SCHEME: Final = "bearer "


class Tokens:
    """Verifies tokens of the providers of a configuration; `keys` by the provider's name."""

    def __init__(self, authentication: Authentication, keys: Mapping[str, ProviderKeys]) -> None:
        self._providers = {provider.issuer: provider for provider in authentication.providers}
        self._keys = keys

    async def member_of(self, metadata: Metadata) -> str:
        """The caller, as policies name it. Unauthenticated without a token that counts, Unavailable without keys."""
        token = token_of(metadata)
        header, claims = unverified(token)
        issuer = claims.get("iss")
        provider = self._providers.get(issuer) if isinstance(issuer, str) else None
        if provider is None:
            raise Unauthenticated("the token's issuer (iss) is none that is accepted here")
        if header.get("alg") not in ALGORITHMS:
            raise Unauthenticated(
                f"the token is signed with an algorithm (alg) that is none of {', '.join(sorted(ALGORITHMS))}"
            )
        kid = header.get("kid")
        if not isinstance(kid, str):
            raise Unauthenticated("the token does not say with which key it is signed (kid)")
        return verified(token, await self._keys[provider.name].find(kid), provider)


def token_of(metadata: Metadata) -> str:
    """The one token of a call's metadata; Unauthenticated when there is none."""
    values = metadata.getall(HEADER, [])
    if not values:
        raise Unauthenticated(
            "this call needs a client certificate, or a token: metadata `authorization: Bearer <JWT>`"
        )
    value = values[0]
    if len(values) > 1 or not isinstance(value, str):
        raise Unauthenticated("the call has more than one authorization header")
    if len(value) > MOST_HEADER:
        raise Unauthenticated(f"the authorization header is longer than {MOST_HEADER} characters")
    if not value.lower().startswith(_SCHEME):
        raise Unauthenticated("the authorization header is not of the form `Bearer <JWT>`")
    return value[len(_SCHEME) :].strip()


def unverified(token: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Header and claims as they stand there; Unauthenticated when it is no JWT."""
    try:
        found = jwt.decode_complete(token, options={"verify_signature": False})
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
        raise Unauthenticated("the token is no JWT in compact form") from None
    return found["header"], found["payload"]


def verified(token: str, key: VerifyingKey, provider: JwtProvider) -> str:
    """The member of a token that the key signed and that counts now for us; Unauthenticated for any other."""
    try:
        claims = jwt.decode(
            token,
            key.key,
            algorithms=key.algorithms,
            audience=provider.audiences,
            issuer=provider.issuer,
            leeway=LEEWAY,
            options={"require": ["exp", "iss", "sub", "aud"], "verify_sub": False},  # more is asked of it below
        )
    except (jwt.PyJWTError, ValueError, TypeError, RecursionError) as error:
        raise Unauthenticated(_reason(error, provider)) from None
    if not members.is_subject(claims["sub"]):
        raise Unauthenticated("the token's subject (sub) is not 1 to 255 printable ASCII characters")
    return members.jwt(provider.name, claims["sub"])


def _reason(error: Exception, provider: JwtProvider) -> str:
    """In words of ours: those of the library may hold parts of the token."""
    if isinstance(error, jwt.MissingRequiredClaimError):
        return f"the token has no claim {error.claim}"
    for kind, reason in _REASONS.items():
        if isinstance(error, kind):
            return reason
    if isinstance(error, jwt.InvalidAudienceError):
        return f"the token is for another audience (aud) than {' or '.join(provider.audiences)}"
    return "the token is out of form"


_REASONS: Final[dict[type[Exception], str]] = {
    jwt.ExpiredSignatureError: "the token has expired (exp): get a new one",
    jwt.ImmatureSignatureError: "the token is not valid yet (nbf or iat): wait, or see whether the clocks are right",
    jwt.InvalidSignatureError: "the token's signature does not fit: it was changed, or another key signed it",
    jwt.InvalidAlgorithmError: "the token's algorithm (alg) is not the one of the key it names",
    jwt.InvalidIssuerError: "the token's issuer (iss) is none that is accepted here",
}


@asynccontextmanager
async def open_tokens(authentication: Authentication) -> AsyncIterator[Tokens]:
    """For the length of the block; begins to read all keys, so that the log names a wrong setting before any call."""
    async with open_asyncio_room() as room, trio.open_nursery() as nursery:
        keys = {
            provider.name: ProviderKeys(
                provider.name,
                partial(room.run, discovery.fetch, provider),
                nursery,
                refetch=authentication.refetch,
            )
            for provider in authentication.providers
        }
        for kept in keys.values():
            kept.refresh()
        yield Tokens(authentication, keys)
        nursery.cancel_scope.cancel()
