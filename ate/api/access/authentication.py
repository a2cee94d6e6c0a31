"""The authentication configuration: whose tokens count as callers. A YAML file in the reference's form (section 6).

    jwtProviders:
    - name: corp                                  # in policies: jwt:corp:<sub>
      issuer: https://login.example.com           # `iss` of its tokens, letter by letter; discovery is below it
      audiences: [ate]                            # a token is for at least one of them
      certificateAuthorityFile: /etc/ate/corp.pem # optional: trusted for its HTTPS instead of the system's authorities
      discoveryTokenFile: /var/run/token          # optional: bearer token for discovery and keys, read for each fetch

`actorIdentityJWTProvider` names the provider whose tokens may mint actors' credentials in the reference. Here node
agents alone do, by certificate: the name is checked, so that files can be shared, and gives nobody anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from ate.api.validation.problems import Problems
from ate.errors import InvalidArgument

_MOST_PROVIDERS: Final = 32
_MOST_AUDIENCES: Final = 32
_ACTORS: Final = "actorIdentityJWTProvider"
_PROVIDERS: Final = "jwtProviders"
_KEYS: Final = ("name", "issuer", "audiences", "certificateAuthorityFile", "discoveryTokenFile")


@dataclass(frozen=True)
class JwtProvider:
    """One trusted issuer. Without `certificate_authority` the system's authorities vouch for its HTTPS."""

    name: str
    issuer: str
    audiences: tuple[str, ...]
    certificate_authority: Path | None = None
    discovery_token: Path | None = None


@dataclass(frozen=True)
class Authentication:
    """`refetch`: seconds between two fetches of a provider's keys, however many tokens name unknown ones."""

    providers: tuple[JwtProvider, ...]
    refetch: float = 10.0


def read(path: Path) -> Authentication:
    """InvalidArgument naming the file and the field when it is unusable."""
    import yaml

    try:
        return parse(yaml.safe_load(path.read_text()))
    except OSError as error:
        raise InvalidArgument(f"--authentication-config {path}: {error.strerror}")
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # a date that is none is a plain ValueError
        raise InvalidArgument(f"--authentication-config {path}: not YAML: {error}")
    except InvalidArgument as error:
        raise InvalidArgument(f"--authentication-config {path}: {error.message}", details=error.details)


def parse(document: Any) -> Authentication:
    """All that is wrong in one InvalidArgument, each with the path of its field."""
    if not isinstance(document, Mapping):
        raise InvalidArgument(f"must be a mapping with {_PROVIDERS}")
    problems = Problems()
    _known(problems, "", document, (_ACTORS, _PROVIDERS))
    entries = document.get(_PROVIDERS)
    if not isinstance(entries, list) or not entries:
        problems.add(_PROVIDERS, "must be a list of at least one provider")
        entries = []
    problems.at_most(_PROVIDERS, entries, _MOST_PROVIDERS)
    providers = [_provider(problems, f"{_PROVIDERS}[{at}]", entry) for at, entry in enumerate(entries)]
    for field in ("name", "issuer"):
        seen: set[str] = set()
        for at, provider in enumerate(providers):
            value = getattr(provider, field)
            problems.check(f"{_PROVIDERS}[{at}].{field}", not value or value not in seen, f"{value!r} is there twice")
            seen.add(value)
    if _ACTORS in document:
        named = document[_ACTORS]
        known = [provider.name for provider in providers]
        problems.check(_ACTORS, named in known, f"{named!r} is none of {_PROVIDERS}")
    problems.raise_if_any()
    return Authentication(tuple(providers))


def _provider(problems: Problems, path: str, entry: Any) -> JwtProvider:
    if not isinstance(entry, Mapping):
        problems.add(path, "must be a mapping")
        return JwtProvider("", "", ())
    _known(problems, path, entry, _KEYS)
    name = _text(problems, path, entry, "name")
    if name:
        problems.short(f"{path}.name", name)
    issuer = _text(problems, path, entry, "issuer")
    if issuer:
        problems.check(
            f"{path}.issuer", _is_issuer(issuer), f"{issuer!r} is no https:// URL without query and fragment"
        )
    audiences = entry.get("audiences")
    if not isinstance(audiences, list) or not audiences:
        problems.add(f"{path}.audiences", "must be a list of at least one audience")
        audiences = []
    problems.at_most(f"{path}.audiences", audiences, _MOST_AUDIENCES)
    for at, audience in enumerate(audiences):
        problems.check(f"{path}.audiences[{at}]", isinstance(audience, str) and audience != "", "must be a text")
    authority = _text(problems, path, entry, "certificateAuthorityFile", required=False)
    token = _text(problems, path, entry, "discoveryTokenFile", required=False)
    return JwtProvider(
        name,
        issuer,
        tuple(audience for audience in audiences if isinstance(audience, str)),
        Path(authority) if authority else None,
        Path(token) if token else None,
    )


def _known(problems: Problems, path: str, entry: Mapping[Any, Any], keys: tuple[str, ...]) -> None:
    for key in entry:
        where = f"{path}.{key}" if path else str(key)
        problems.check(where[:200], key in keys, f"is not one of {', '.join(keys)}")


def _text(problems: Problems, path: str, entry: Mapping[Any, Any], key: str, *, required: bool = True) -> str:
    value = entry.get(key)
    if value in (None, "") and not required:
        return ""
    if isinstance(value, str) and value and "\0" not in value:
        return value
    problems.add(f"{path}.{key}", "is required" if value in (None, "") else "must be a text")
    return ""


def _is_issuer(text: str) -> bool:
    try:
        url = urlsplit(text)
        return (
            text.isascii()
            and text.isprintable()
            and not set(text) & set(" ?#@\\")
            and url.scheme == "https"
            and bool(url.hostname)
            and url.port != 0
        )
    except ValueError:  # of the port, or of brackets
        return False
