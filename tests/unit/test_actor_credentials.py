"""Promises of an actor's credentials in its worker: fresh by the wall clock, of this waking life, of this actor."""

from __future__ import annotations

from typing import Any, cast

import pytest
import trio

from ate.errors import FailedPrecondition
from ate.node.credentials import Credentials
from ate.node.worker import Active
from ate.proto import ateom_pb2, node_pb2

LIFE = 900


class Mint:
    """The node's agent: each token is another one, good for LIFE seconds."""

    def __init__(self, world: World) -> None:
        self.world, self.asked = world, 0

    async def MintActorToken(
        self, request: node_pb2.MintActorTokenRequest, *, timeout: float
    ) -> node_pb2.MintActorTokenResponse:
        self.asked += 1
        token = f"{request.actor_uid} {list(request.audience)} {self.asked}"
        await trio.sleep(self.world.delay)
        return node_pb2.MintActorTokenResponse(token=token, expires_at_unix=int(self.world.now) + LIFE)


class World:
    def __init__(self) -> None:
        self.now, self.delay = 1_000_000.0, 0.0
        self.active: Active | None = actor("a")
        self.mint = Mint(self)
        self.credentials = Credentials(lambda: self.active, cast(Any, self.mint), lambda: self.now)

    async def token(self, *audience: str) -> str:
        assert self.active is not None
        return (await self.credentials.token(self.active, audience)).text


def actor(uid: str) -> Active:
    request = ateom_pb2.RunWorkloadRequest(atespace="demo", actor_name=uid, actor_uid=uid)
    return Active(request=request, slot=cast(Any, None), epoch_unix_nano=0)


async def test_what_was_minted_is_handed_out_again_for_half_its_life() -> None:
    world = World()
    first = await world.token("x")
    world.now += LIFE / 2 - 1
    assert await world.token("x") == first and world.mint.asked == 1
    world.now += 2
    assert await world.token("x") != first


async def test_every_question_has_its_own_answer_and_their_number_is_bounded() -> None:
    world = World()
    assert await world.token("x") != await world.token("y")
    for number in range(500):
        await world.token(str(number))
    assert world.credentials._life is not None and len(world.credentials._life.answers) <= 64


async def test_nothing_is_kept_over_a_sleep_or_for_another_actor() -> None:
    world = World()
    first = await world.token("x")
    world.active = actor("a")  # the same one, awake again
    again = await world.token("x")
    assert again != first
    world.active = actor("b")
    assert (await world.token("x")).startswith("b ")


async def test_a_clock_set_back_or_on_never_makes_an_old_token_fresh() -> None:
    world = World()
    first = await world.token("x")
    world.now += 10 * LIFE
    assert await world.token("x") != first


async def test_an_actor_that_left_while_its_token_was_minted_gets_none(autojump_clock: object) -> None:
    world = World()
    world.delay = 1.0
    async with trio.open_nursery() as nursery:

        async def leave() -> None:
            await trio.sleep(0.5)
            world.active = actor("b")

        nursery.start_soon(leave)
        with pytest.raises(FailedPrecondition, match="has left"):
            await world.token("x")
    assert "a " not in await world.token("x")
