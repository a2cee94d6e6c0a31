"""What a row is, and how the modules of the table add theirs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.system.api_peer import Api

Check = Callable[[Api], None]


@dataclass(frozen=True)
class Row:
    """One promise of one RPC."""

    rpc: str
    rule: str
    check: Check

    @property
    def topic(self) -> str:
        """Name of the module its check is of."""
        return str(getattr(self.check, "func", self.check).__module__)

    def __str__(self) -> str:
        return f"{self.rpc}: {self.rule}"


ROWS: list[Row] = []


def add(rpc: str, rule: str, check: Check) -> None:
    ROWS.append(Row(rpc, rule, check))


def row(rpc: str, rule: str) -> Callable[[Check], Check]:
    """The decorated function is the check of a row."""

    def decorate(check: Check) -> Check:
        add(rpc, rule, check)
        return check

    return decorate
