"""Names that several roles must agree on: syntax, references, SPIFFE ids, snapshot paths, header names.

Pure functions; nothing here touches the world. The syntax rules are those of the reference, section 2.1.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass
from typing import Final

SHORT: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
LABEL: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

GOLDEN_ATESPACE: Final = "ate-golden"
TARGET_ACTOR_HEADER: Final = "ate-target-actor"
TARGET_PORT_HEADER: Final = "X-Ate-Target-Port"
ASSIGNMENT_STALE_HEADER: Final = "X-Ate-Assignment-Stale"
ACTOR_ADDRESS: Final = "169.254.17.2"
GATEWAY_ADDRESS: Final = "169.254.17.1"
OPERATION_ID_METADATA: Final = "ate-operation-id"
FENCE_METADATA: Final = "ate-fence"
"""A number that rises with every operation on an actor: a node refuses calls of operations that others came after."""

SERVICE_ACCOUNTS: Final = {
    "api": "ate-api-server",
    "controller": "ate-controller",
    "atelet": "atelet",
    "ateom": "ateom",
    "router": "atenet-router",
    "identity-broker": "ate-identity-broker",
}
"""Service account of each role, as in the reference's SPIFFE ids."""


def is_short(text: str) -> bool:
    """DNS-1123 label, 1..63 characters."""
    return SHORT.fullmatch(text) is not None


def is_long(text: str) -> bool:
    """DNS subdomain, 1..253 characters."""
    return 1 <= len(text) <= 253 and all(
        len(part) <= 63 and LABEL.fullmatch(part) is not None for part in text.split(".")
    )


def is_uuid(text: str) -> bool:
    """Lower-case hyphenated UUID."""
    return UUID.fullmatch(text) is not None


def new_uid() -> str:
    """A random UUID (version 4)."""
    return str(uuid.uuid4())


@dataclass(frozen=True, slots=True, order=True)
class Ref:
    """Name of one resource; `atespace` is empty for global ones."""

    atespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.atespace}/{self.name}" if self.atespace else self.name

    @classmethod
    def parse(cls, text: str) -> Ref:
        """Reads `<atespace>/<name>`; ValueError when a part is missing or not a short name."""
        atespace, slash, name = text.partition("/")
        if not slash or not is_short(atespace) or not is_short(name):
            raise ValueError(f"{text!r} is not <atespace>/<name>")
        return cls(atespace, name)


def service_account_id(trust_domain: str, account: str, namespace: str = "ate-system") -> str:
    """SPIFFE id of a role: `spiffe://<trust domain>/ns/<namespace>/sa/<account>`."""
    return f"spiffe://{trust_domain}/ns/{namespace}/sa/{account}"


def user_id(trust_domain: str, user: str) -> str:
    """SPIFFE id of a person or program outside the platform."""
    return f"spiffe://{trust_domain}/user/{user}"


def actor_prefix(location: str, atespace: str, actor_uid: str) -> str:
    """URI below which everything an actor owns in object storage lies (contract.md, Snapshot path)."""
    return f"{location.rstrip('/')}/atespaces/{atespace}/actors/{actor_uid}"


def snapshot_uri(location: str, atespace: str, actor_uid: str, name: str) -> str:
    """URI of one snapshot of an actor."""
    return f"{actor_prefix(location, atespace, actor_uid)}/snapshots/{name}"


def tag_prefix(location: str, atespace: str, tag_uid: str) -> str:
    """URI of the snapshot a tag owns."""
    return f"{location.rstrip('/')}/atespaces/{atespace}/tags/{tag_uid}"
