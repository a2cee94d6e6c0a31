"""Kubernetes quantities: "500m" of a core, "2Gi" of memory. Parsing only; we never print them."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Final

_SYNTAX: Final = re.compile(r"([+-]?[0-9]+(?:\.[0-9]*)?|[+-]?\.[0-9]+)([eE][+-]?[0-9]+|[numkMGTPE]|[KMGTPE]i)?")
_SCALE: Final = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9),
    "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30),
    "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip

_MOST: Final = Decimal(2**63)
"""What the wire's int64 cannot hold any more; Kubernetes draws the same line."""
_MOST_DIGITS: Final = 40
"""Exponents beyond give nothing of use, and computing with them could take forever."""


def parse(text: str) -> Decimal:
    """The value of a quantity, in its base unit (cores, bytes). ValueError when it is none."""
    found = _SYNTAX.fullmatch(text)
    if found is None or len(text) > 32:
        raise ValueError(f"{text!r} is not a quantity such as 500m or 2Gi")
    number, suffix = found.group(1), found.group(2) or ""
    if suffix[:1] in ("e", "E") and len(suffix) > 1 and suffix[1:] != "i":
        exponent = int(suffix[1:])
        if abs(exponent) > _MOST_DIGITS:
            raise ValueError(f"{text!r} is beyond every quantity")
        value = Decimal(number) * Decimal(10) ** exponent
    else:
        value = Decimal(number) * _SCALE[suffix]
    if abs(value) >= _MOST:
        raise ValueError(f"{text!r} is more than a quantity can be (2^63)")
    return value


def milli_cpu(text: str) -> int:
    """Thousandths of a core, rounded up."""
    return math.ceil(parse(text) * 1000)


def in_bytes(text: str) -> int:
    """Bytes, rounded up."""
    return math.ceil(parse(text))
