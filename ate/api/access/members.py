"""Who a policy speaks of, in one string: `user:<id>` holds a certificate of ours, `jwt:<provider>:<sub>` shows a token.

A provider's name has no colon, so the subject is all that follows the second one, whatever it holds: two providers, or
a provider and our own CA, can never mean the same member.
"""

from __future__ import annotations

import re
from typing import Final

from ate import names

_USER: Final = "user:"
_JWT: Final = "jwt:"
_SUBJECT: Final = re.compile(r"[\x20-\x7e]{1,255}")
"""At most 255 ASCII characters (OpenID Connect Core, section 2), and none that could forge a line of a log."""
FORMS: Final = "user:<id> or jwt:<provider>:<sub>"


def user(name: str) -> str:
    """Somebody with a certificate of ours for that user."""
    return _USER + name


def jwt(provider: str, subject: str) -> str:
    """Somebody whom a provider of the authentication configuration calls so."""
    return f"{_JWT}{provider}:{subject}"


def is_subject(text: object) -> bool:
    """Whether a token's `sub` can name a member."""
    return isinstance(text, str) and _SUBJECT.fullmatch(text) is not None


def is_member(text: str) -> bool:
    """Whether this could ever be somebody."""
    if text.startswith(_JWT):
        provider, colon, subject = text.removeprefix(_JWT).partition(":")
        return bool(colon) and names.is_short(provider) and is_subject(subject)
    return text.startswith(_USER) and len(text) > len(_USER)


def has_certificate(member: str) -> bool:
    return member.startswith(_USER)
