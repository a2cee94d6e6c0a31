"""The one logger: JSON lines on stderr, with the fields that tie a line to an actor, worker or operation.

`bind(...)` adds fields to every line written in the current task and its children (a contextvar), so that code far
down need not be handed names only to log them. Lines of a traced call carry its ids. Secrets are never fields.
"""

from __future__ import annotations

import contextlib
import contextvars
import json
import logging
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from ate.telemetry import trace

_fields: contextvars.ContextVar[dict[str, Any]] = contextvars.ContextVar("ate_log_fields", default={})  # noqa: B039


def _trace() -> dict[str, str]:
    here = trace.current()
    if here is None:
        return {}
    return {"trace_id": here.trace_id, "span_id": here.span_id, "trace_flags": "01" if here.sampled else "00"}


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            **_trace(),
            **_fields.get(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, ensure_ascii=False)


class Logger:
    """`log.info("actor resumed", actor=..., worker=...)`: a message and fields."""

    def __init__(self, name: str) -> None:
        self._log = logging.getLogger(name)

    def debug(self, message: str, **fields: Any) -> None:
        if self._log.isEnabledFor(logging.DEBUG):
            self._log.debug(message, extra={"fields": fields})

    def info(self, message: str, **fields: Any) -> None:
        self._log.info(message, extra={"fields": fields})

    def warning(self, message: str, *, exc: BaseException | None = None, **fields: Any) -> None:
        self._log.warning(message, extra={"fields": fields}, exc_info=exc)

    def error(self, message: str, *, exc: BaseException | None = None, **fields: Any) -> None:
        self._log.error(message, extra={"fields": fields}, exc_info=exc)


@contextlib.contextmanager
def bind(**fields: Any) -> Iterator[None]:
    """Adds `fields` to every line logged inside the block by this task and tasks it starts."""
    token = _fields.set({**_fields.get(), **fields})
    try:
        yield
    finally:
        _fields.reset(token)


def bound() -> Mapping[str, Any]:
    """The fields that lines of this task carry."""
    return _fields.get()


def setup(level: str = "info", *, role: str = "") -> None:
    """Sends all logging to stderr as JSON. Called once, by the command line."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for chatty in ("hpack", "h2", "asyncio", "aiohttp.access", "grpclib"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    if role:
        _fields.set({**_fields.get(), "role": role})
