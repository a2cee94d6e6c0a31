"""`ate admin`: what the one who runs the platform does by hand now and then: pools of signing keys, their rotation.

Works on files. The roles that use a pool read it again by themselves.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from ate.errors import FailedPrecondition, InvalidArgument
from ate.files import write_whole
from ate.identity import actors, ca, jwt_pool, keys, rotation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="action", required=True, metavar="ACTION")

    make_ca = verbs.add_parser("make-ca-pool", help="a new pool of one certificate authority")
    make_ca.add_argument("--file", required=True, help="where to write it; never over one that exists")
    make_ca.add_argument("--ca-id", default="1")
    make_ca.add_argument("--key-type", default="ED25519", choices=keys.TYPES)
    make_ca.add_argument("--common-name", default="ate CA")

    make_jwt = verbs.add_parser("make-jwt-pool", help="a new pool of one key that signs tokens")
    make_jwt.add_argument("--file", required=True, help="where to write it; never over one that exists")
    make_jwt.add_argument("--key-id", default="1")
    make_jwt.add_argument("--algorithm", default="ES256", choices=tuple(jwt_pool.ALGORITHMS))

    rotate = verbs.add_parser("rotate", help="have a new authority take over in a pool, while everything runs")
    rotate.add_argument("--file", required=True, help="a CA pool or a JWT pool")
    rotate.add_argument(
        "--overlap", default="", help="from publishing to signing, as 90s, 10m, 2h (default: 10m; a JWT pool: 1h)"
    )


def run(options: argparse.Namespace) -> int:
    path = Path(options.file)
    if options.action == "rotate":
        return _rotate(path, options.overlap)
    if path.exists():
        raise FailedPrecondition(f"{path} exists already: `ate admin rotate` puts a new authority into it")
    if options.action == "make-ca-pool":
        authority = ca.make_authority(options.ca_id, common_name=options.common_name, key_type=options.key_type)
        text = ca.to_json(ca.CaPool((authority,)))
    else:
        text = jwt_pool.to_json(jwt_pool.JwtPool((jwt_pool.make_authority(options.key_id, options.algorithm),)))
    try:
        write_whole(path, text)
    except OSError as error:
        raise InvalidArgument(f"--file {path}: {error.strerror}")
    print(f"{path} made")
    return 0


def _rotate(path: Path, overlap: str) -> int:
    """Of the same kind of key as the authority that signs now."""
    now = time.time()
    try:
        text = path.read_text()
    except OSError as error:
        raise InvalidArgument(f"--file {path}: {error.strerror}")
    make: Callable[[str], Mapping[str, Any]]
    if f'"{jwt_pool.LIST}"' in text:
        algorithm = jwt_pool.open_pool(path).current().at(now).authorities[0].algorithm
        list_name, longest, usual = jwt_pool.LIST, timedelta(hours=1), timedelta(hours=1)
        make = lambda id_: jwt_pool.to_entry(jwt_pool.make_authority(id_, algorithm))  # noqa: E731
    else:
        signer = ca.load(path).at(now).authorities[0]
        kind = keys.type_of(signer.key)
        name = ca.common_name(signer)
        list_name, usual = ca.LIST, rotation.OVERLAP
        longest = max(ca.LEAF_LIFETIME, actors.CERTIFICATE_LIFETIME)
        make = lambda id_: ca.to_entry(ca.make_authority(id_, common_name=name, key_type=kind))  # noqa: E731
    within = _duration(overlap) if overlap else usual
    fresh, signs, ends = rotation.rotate(path, list_name, make, longest=longest, overlap=within)
    print(f"authority {fresh} of {path} is trusted now, signs from {_at(signs)} on; those before it end {_at(ends)}")
    return 0


_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def _duration(text: str) -> timedelta:
    if not text[:-1].isdecimal() or text[-1] not in _UNITS:
        raise InvalidArgument(f"--overlap: {text!r} is no duration such as 90s, 10m, 2h")
    return timedelta(seconds=int(text[:-1]) * _UNITS[text[-1]])


def _at(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
