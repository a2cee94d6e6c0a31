"""Reads a provider's keys where OpenID says they are: discovery below the issuer, then the JWK Set it names.

Runs in the asyncio room, for aiohttp. Time and size are bounded, redirects are not followed, both documents come over
HTTPS only. Files of the configuration are read for each fetch, as they are rotated by others.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from ate.api.access import key_set
from ate.api.access.authentication import JwtProvider
from ate.api.access.key_set import VerifyingKey

DISCOVERY: Final = "/.well-known/openid-configuration"
TIMEOUT: Final = 5.0
"""Seconds for all of a fetch: a call waits for it."""
_MOST_BYTES: Final = 256 << 10


class Unreadable(Exception):
    """Why a provider's keys could not be read; for the log, as it names addresses and files."""


async def fetch(provider: JwtProvider) -> dict[str, VerifyingKey]:
    """The keys by id. Raises Unreadable."""
    try:
        async with asyncio.timeout(TIMEOUT):
            return await _fetch(provider)
    except TimeoutError:
        raise Unreadable(f"{provider.issuer} did not answer within {TIMEOUT:.0f} s") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise Unreadable(f"{type(error).__name__}: {error}") from error


async def _fetch(provider: JwtProvider) -> dict[str, VerifyingKey]:
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    if provider.discovery_token is not None:
        # Also where the keys are, which may be another host: discovery said so, and it decides who everybody is anyway.
        headers["Authorization"] = f"Bearer {_token(provider)}"
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=_context(provider)), headers=headers, auto_decompress=False
    ) as session:
        where = provider.issuer.rstrip("/") + DISCOVERY
        found = await _document(session, where)
        if not isinstance(found, dict) or found.get("issuer") != provider.issuer:
            raise Unreadable(f"{where} speaks for another issuer than {provider.issuer}")
        keys = found.get("jwks_uri")
        if not isinstance(keys, str) or urlsplit(keys).scheme != "https":
            raise Unreadable(f"{where} names no https:// jwks_uri")
        try:
            return key_set.read(await _document(session, keys))
        except ValueError as error:
            raise Unreadable(f"{keys} {error}") from None


async def _document(session: aiohttp.ClientSession, url: str) -> Any:
    async with session.get(url, allow_redirects=False) as response:
        if response.status != 200:
            raise Unreadable(f"{url} answered HTTP {response.status}")
        body = bytearray()
        async for chunk in response.content.iter_chunked(64 << 10):
            body += chunk
            if len(body) > _MOST_BYTES:
                raise Unreadable(f"{url} has more than {_MOST_BYTES} bytes")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise Unreadable(f"{url} is no JSON") from None


def _context(provider: JwtProvider) -> ssl.SSLContext:
    file = provider.certificate_authority
    try:
        return ssl.create_default_context(cafile=file)
    except OSError as error:  # ssl.SSLError is one
        raise Unreadable(f"certificateAuthorityFile {file}: {error}") from None


def _token(provider: JwtProvider) -> str:
    file = provider.discovery_token
    assert file is not None
    try:
        token = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Unreadable(f"discoveryTokenFile {file}: {error}") from None
    if not token or not token.isascii() or not token.isprintable():
        raise Unreadable(f"discoveryTokenFile {file}: holds no token")
    return token
