"""Access policies as resources, and what they say of a person. One for the whole install, at most one an atespace.

While there is no global policy nothing is restricted: every person with one of our certificates is owner of everything,
as on a machine of one's own. Writing the first one turns the table on. Who shows a token instead has the roles that
policies give and no other, and none before there is a global one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from ate.api.access import members
from ate.api.access.table import Role
from ate.api.context import Context
from ate.api.kinds import ACCESS, ATESPACES
from ate.api.validation import resources as rules
from ate.api.validation.problems import Problems
from ate.api.workflows import steps
from ate.errors import AlreadyExists, InvalidArgument, NotFound
from ate.log import Logger
from ate.proto import ateapi_pb2 as pb
from ate.store import Key, Row, Store, Tx

log = Logger("ate.api")

NAME: Final = "default"
_ROLES: Final = {"owner": Role.OWNER, "editor": Role.EDITOR, "viewer": Role.VIEWER}
_MOST_BINDINGS: Final = 100
_MOST_MEMBERS: Final = 1500
_LONGEST_MEMBER: Final = 512
_GLOBAL: Final = Key("", NAME)


async def role_of(store: Store, member: str, atespace: str) -> Role:
    """What `member` (see `members.py`) may do in the atespace, its global role included; an empty one: everywhere."""
    everywhere = await store.get(ACCESS, _GLOBAL)
    if everywhere is None:
        return Role.OWNER if members.has_certificate(member) else Role.NONE
    role = _role_in(everywhere.value, member)
    if atespace and role < Role.OWNER:
        here = await store.get(ACCESS, Key(atespace, NAME))
        if here is not None:
            role = max(role, _role_in(here.value, member))
    return role


def _role_in(policy: pb.AccessPolicy, member: str) -> Role:
    found = (_ROLES.get(binding.role, Role.NONE) for binding in policy.bindings if member in binding.members)
    return max(found, default=Role.NONE)


def _check(problems: Problems, policy: pb.AccessPolicy, *, present: bool, atespace: str, guarded: bool) -> None:
    path = "access_policy"
    if not problems.check(path, present, "is required"):
        return
    problems.check(f"{path}.metadata.name", policy.metadata.name == NAME, f"must be {NAME!r}")
    problems.check(f"{path}.metadata.atespace", policy.metadata.atespace == atespace, f"must be {atespace!r}")
    if guarded:
        rules.guards(problems, f"{path}.metadata", policy.metadata)
    problems.at_most(f"{path}.bindings", policy.bindings, _MOST_BINDINGS)
    for number, binding in enumerate(policy.bindings):
        where = f"{path}.bindings[{number}]"
        problems.check(f"{where}.role", binding.role in _ROLES, f"{binding.role[:64]!r} is not one of {list(_ROLES)}")
        problems.at_most(f"{where}.members", binding.members, _MOST_MEMBERS)
        problems.unique(f"{where}.members", binding.members, "member")
        for at, member in enumerate(binding.members):
            problems.length(f"{where}.members[{at}]", member, _LONGEST_MEMBER)
            known = members.is_member(member)
            problems.check(f"{where}.members[{at}]", known, f"{member[:64]!r} is not {members.FORMS}")
    if not atespace:
        owned = any(binding.role == "owner" and binding.members for binding in policy.bindings)
        problems.check(f"{path}.bindings", owned, "nobody is owner: nobody could change anything any more")


async def ensure_owners(ctx: Context, owners: Sequence[str]) -> None:
    """Writes a global policy with these owners when there is none. InvalidArgument when it would be out of form."""
    request = pb.CreateGlobalAccessPolicyRequest()
    request.access_policy.metadata.name = NAME
    request.access_policy.bindings.add(role="owner", members=owners)
    try:
        await create_global(ctx, request)
        log.info("the global access policy was written", owners=list(owners))
    except AlreadyExists:
        log.info("there is a global access policy: the initial owners are left aside")
    except InvalidArgument as error:
        raise InvalidArgument(f"--initial-owner: {error.message}")


async def create_global(ctx: Context, request: pb.CreateGlobalAccessPolicyRequest) -> pb.AccessPolicy:
    problems = Problems()
    _check(problems, request.access_policy, present=request.HasField("access_policy"), atespace="", guarded=False)
    problems.raise_if_any()
    return await _create(ctx, _GLOBAL, request.access_policy, "a global access policy exists already: update it")


async def create(ctx: Context, request: pb.CreateAtespaceAccessPolicyRequest) -> pb.AccessPolicy:
    key = _checked(request, guarded=False)
    return await _create(
        ctx, key, request.access_policy, f"atespace {key.scope} has an access policy already: update it"
    )


async def _create(ctx: Context, key: Key, given: pb.AccessPolicy, twice: str) -> pb.AccessPolicy:
    policy = pb.AccessPolicy(metadata=pb.ResourceMetadata(atespace=key.scope, name=key.name), bindings=given.bindings)

    def insert(tx: Tx) -> Row[pb.AccessPolicy]:
        _require_atespace(tx, key)
        try:
            return tx.insert(ACCESS, key, policy)
        except AlreadyExists:
            raise AlreadyExists(twice)

    return (await ctx.store.transact(insert)).value


async def get_global(ctx: Context, request: pb.GetGlobalAccessPolicyRequest) -> pb.AccessPolicy:
    row = await ctx.store.get(ACCESS, _GLOBAL)
    if row is None:
        raise NotFound(
            "there is no global access policy: every person may do everything with a certificate, nothing by a token"
        )
    return row.value


async def get(ctx: Context, request: pb.GetAtespaceAccessPolicyRequest) -> pb.AccessPolicy:
    key = _named(request)
    return (await ctx.store.transact(lambda tx: _load(tx, key))).value


async def update_global(ctx: Context, request: pb.UpdateGlobalAccessPolicyRequest) -> pb.AccessPolicy:
    problems = Problems()
    _check(problems, request.access_policy, present=request.HasField("access_policy"), atespace="", guarded=True)
    problems.raise_if_any()
    return await _update(ctx, _GLOBAL, request.access_policy)


async def update(ctx: Context, request: pb.UpdateAtespaceAccessPolicyRequest) -> pb.AccessPolicy:
    return await _update(ctx, _checked(request, guarded=True), request.access_policy)


async def _update(ctx: Context, key: Key, given: pb.AccessPolicy) -> pb.AccessPolicy:
    def replace(tx: Tx) -> Row[pb.AccessPolicy]:
        row = _load(tx, key)
        guards = pb.DeleteOptions(uid=given.metadata.uid, version=given.metadata.version)
        steps.check_guards(_what(key), row, guards)
        del row.value.bindings[:]
        row.value.bindings.extend(given.bindings)
        return tx.update(ACCESS, key, row.value, uid=row.uid, version=row.version)

    return (await ctx.store.transact(replace)).value


async def delete(ctx: Context, request: pb.DeleteAtespaceAccessPolicyRequest) -> pb.AccessPolicy:
    key = _named(request, lambda problems: rules.delete_options(problems, "options", request.options))

    def remove(tx: Tx) -> Row[pb.AccessPolicy]:
        row = _load(tx, key)
        steps.check_guards(_what(key), row, request.options)
        return tx.delete(ACCESS, key, uid=row.uid, version=row.version)

    return (await ctx.store.transact(remove)).value


def drop(tx: Tx, atespace: str) -> None:
    """The atespace is gone."""
    if tx.get(ACCESS, Key(atespace, NAME)) is not None:
        tx.delete(ACCESS, Key(atespace, NAME))


def _named(request: Any, also: Callable[[Problems], None] = lambda problems: None) -> Key:
    """The policy of the atespace that a request names."""
    problems = Problems()
    rules.ref(problems, "atespace", request.HasField("atespace"), request.atespace, scoped=False)
    also(problems)
    problems.raise_if_any()
    return Key(request.atespace.name, NAME)


def _checked(
    request: pb.CreateAtespaceAccessPolicyRequest | pb.UpdateAtespaceAccessPolicyRequest, *, guarded: bool
) -> Key:
    present, atespace = request.HasField("access_policy"), request.atespace.name
    return _named(
        request,
        lambda problems: _check(problems, request.access_policy, present=present, atespace=atespace, guarded=guarded),
    )


def _what(key: Key) -> str:
    return f"access policy of atespace {key.scope}" if key.scope else "global access policy"


def _load(tx: Tx, key: Key) -> Row[pb.AccessPolicy]:
    _require_atespace(tx, key)
    row = tx.get(ACCESS, key)
    if row is None:
        raise NotFound(f"{_what(key)} not found")
    return row


def _require_atespace(tx: Tx, key: Key) -> None:
    if key.scope and tx.get(ATESPACES, Key("", key.scope)) is None:
        raise NotFound(f"atespace {key.scope} not found")
