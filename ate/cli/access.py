"""Access policies at the command line: of the atespace given with -a, or the global one. Each is named `default`."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from ate.cli import output
from ate.cli.client import Api
from ate.errors import InvalidArgument, NotFound
from ate.proto import ateapi_pb2 as pb

_TIMEOUT = 30.0


def _where(atespace: str) -> tuple[str, dict[str, Any]]:
    """(infix of the RPCs' names, what their requests begin with)."""
    return ("Atespace", {"atespace": pb.ObjectRef(name=atespace)}) if atespace else ("Global", {})


async def _call(api: Api, verb: str, atespace: str, **fields: Any) -> pb.AccessPolicy:
    infix, where = _where(atespace)
    rpc = f"{verb}{infix}AccessPolicy"
    answer: pb.AccessPolicy = await getattr(api.control, rpc)(
        getattr(pb, f"{rpc}Request")(**where, **fields), timeout=_TIMEOUT
    )
    return answer


def _refuse_names(options: argparse.Namespace) -> None:
    if [name for name in options.names if name != "default"]:
        raise InvalidArgument("an access policy is found by its atespace: give -a ATESPACE, or none for the global one")


async def get(api: Api, options: argparse.Namespace) -> int:
    _refuse_names(options)
    if options.watch:
        raise InvalidArgument("-w works for actors and workers, not for access policies")
    try:
        policy = await _call(api, "Get", options.atespace)
    except NotFound as error:
        if options.output not in ("table", "wide") or options.names:
            raise
        print(error.message, file=sys.stderr)
        return 0
    print(output.render([policy], options.output, kind="AccessPolicy", single=True))
    return 0


async def delete(api: Api, options: argparse.Namespace) -> int:
    _refuse_names(options)
    if not options.atespace:
        raise InvalidArgument("the global access policy cannot be deleted: change it with `ate apply -f FILE`")
    try:
        gone = await _call(api, "Delete", options.atespace)
    except NotFound:
        if not options.ignore_not_found:
            raise
        return 0
    print(f"{output.name(gone)} deleted", flush=True)
    return 0


async def apply(api: Api, policy: pb.AccessPolicy) -> str:
    """What was done with a manifest's policy."""
    atespace = policy.metadata.atespace
    try:
        known = await _call(api, "Get", atespace)
    except NotFound:
        await _call(api, "Create", atespace, access_policy=policy)
        return "created"
    if known.bindings == policy.bindings:
        return "unchanged"
    known.bindings.clear()
    known.bindings.extend(policy.bindings)
    await _call(api, "Update", atespace, access_policy=known)
    return "configured"
