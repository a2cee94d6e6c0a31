"""One sandbox prepared ahead: made for the template a worker last held, taken by the next restore of that template.

Never needed, only quicker: whatever goes wrong here is logged, and the restore goes the plain way. Owned by
`worker.py`.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from pathlib import Path

import trio

from ate import log
from ate.errors import AteError
from ate.node.assembly import Assembly
from ate.node.sandbox.driver import SandboxDriver
from ate.node.slot import Slot, SlotMaker

_log = log.Logger(__name__)


class Spare:
    """Holds at most one slot with a created sandbox. `nursery` owns the work of preparing and of throwing away."""

    def __init__(
        self, nursery: trio.Nursery, slots: SlotMaker, driver_for: Callable[[Path], SandboxDriver], *, enabled: bool
    ) -> None:
        self._nursery, self._slots, self._driver_for, self._enabled = nursery, slots, driver_for, enabled
        self._slot: Slot | None = None
        self._busy = trio.Lock()

    def prepare(self, assembly: Assembly, delay: float) -> None:
        """Has one for this template after `delay` seconds, if there is none by then."""
        if self._enabled:
            self._nursery.start_soon(self._make, assembly, delay)

    async def take(self, assembly: Assembly) -> Slot | None:
        """The one prepared for this template, waiting for it if it is nearly ready; it is the actor's from now on."""
        async with self._busy:
            slot, self._slot = self._slot, None
        if slot is None:
            return None
        if slot.assembly.template_key != assembly.template_key or _has_ended(slot):
            self._nursery.start_soon(self._slots.remove, slot)
            return None
        try:
            if slot.own_volumes is not None:
                await trio.to_thread.run_sync(slot.adopt, assembly)
        except OSError as error:
            _log.warning("a prepared sandbox cannot be used", exc=error)
            self._nursery.start_soon(self._slots.remove, slot)
            return None
        slot.assembly = assembly
        return slot

    async def drop(self) -> None:
        """Throws the prepared sandbox away, if there is one."""
        slot, self._slot = self._slot, None
        if slot is not None:
            await self._slots.remove(slot)

    async def _make(self, assembly: Assembly, delay: float) -> None:
        await trio.sleep(delay)
        async with self._busy:
            spare = self._slot
            if spare is not None and spare.assembly.template_key == assembly.template_key and not _has_ended(spare):
                return
            await self.drop()
            try:
                slot = await self._slots.make(self._driver_for(assembly.runsc), assembly, ahead=True)
            except (AteError, OSError) as error:
                _log.info("no sandbox prepared ahead", reason=str(error))
                return
            try:
                slot.sandbox = await slot.driver.create(slot.spec)
                await slot.driver.warm(slot.sandbox)
            except BaseException as error:
                await self._slots.remove(slot)
                if not isinstance(error, AteError | OSError):
                    raise
                _log.info("no sandbox prepared ahead", reason=str(error))
                return
            self._slot = slot


def _has_ended(slot: Slot) -> bool:
    sandbox = slot.sandbox
    return sandbox is None or sandbox.ended or bool(select.select([sandbox.pidfd], [], [], 0)[0])
