"""Where a task stands in a distributed trace (W3C trace context), and the spans it leaves behind.

A trace comes in with a call or is begun by a process that exports; in any other process there is none, and `span` is a
look at two variables. The context is a contextvar: tasks inherit it from the task that starts them, so work that
outlives its caller (a flight, an operation on a worker) stays in the trace of the one that asked for it first. A span
is only made when it will be exported; where a trace is not sampled, or only passes through, its ids are handed on.
"""

from __future__ import annotations

import contextvars
import os
import random
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Literal, Self

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_MAX_STATE: Final = 512
"""Characters of a tracestate that are passed on; W3C asks for at least that many."""

Kind = Literal["internal", "server", "client"]
Value = str | int | float | bool


@dataclass(frozen=True, slots=True)
class TraceContext:
    """Ids in lower-case hexadecimal, 32 and 16 digits. `state` is the vendors' tracestate, passed on as it came."""

    trace_id: str
    span_id: str
    sampled: bool
    state: str = ""

    def traceparent(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{'01' if self.sampled else '00'}"


@dataclass(frozen=True, slots=True)
class Sampler:
    """Which traces are exported: a share of those that begin here; of others, as their parent says if `parent_based`.

    The share is taken by trace id, as OpenTelemetry does it, so that all processes with one ratio choose alike.
    """

    ratio: float = 0.1
    parent_based: bool = True

    def chooses(self, trace_id: str) -> bool:
        return int(trace_id[16:], 16) < self.ratio * 2**64

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], ratio: float) -> Sampler:
        """OTEL_TRACES_SAMPLER and its _ARG; without them, or where they make no sense, parent-based with `ratio`."""
        name = environment.get("OTEL_TRACES_SAMPLER", "").strip().lower()
        parent_based = name.startswith("parentbased_")
        base = name.removeprefix("parentbased_")
        fixed = {"always_on": 1.0, "always_off": 0.0}
        if base in fixed:
            return cls(fixed[base], parent_based)
        if base != "traceidratio":
            return cls(ratio)
        try:
            given = float(environment.get("OTEL_TRACES_SAMPLER_ARG", "1"))
        except ValueError:
            given = 1.0
        return cls(given if 0 <= given <= 1 else 1.0, parent_based)


@dataclass(slots=True)
class _State:
    export: Callable[[Span], None] | None = None
    sampler: Sampler = field(default_factory=Sampler)


_state: Final = _State()
_current: contextvars.ContextVar[TraceContext | None] = contextvars.ContextVar("ate_trace", default=None)
_random: Final = random.Random(os.urandom(16))  # not the module's: a simulation's seed stays what it was
os.register_at_fork(after_in_child=lambda: _random.seed(os.urandom(16)))


def install(export: Callable[[Span], None] | None, sampler: Sampler) -> None:
    """From now on sampled spans go to `export` when they end, which may not block; None: no spans are made."""
    _state.export, _state.sampler = export, sampler


def exporting() -> bool:
    return _state.export is not None


def current() -> TraceContext | None:
    """The trace of this task."""
    return _current.get()


def enter(context: TraceContext | None) -> contextvars.Token[TraceContext | None]:
    """Puts this task into a trace; for tasks of their own, and where `leave` follows."""
    return _current.set(context)


def leave(token: contextvars.Token[TraceContext | None]) -> None:
    _current.reset(token)


def parse(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """The context in the headers; None when they are not as W3C writes them."""
    found = _TRACEPARENT.fullmatch(traceparent.strip())
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == "ff" or (version == "00" and more) or not int(trace_id, 16) or not int(span_id, 16):
        return None
    passable = len(tracestate) <= _MAX_STATE and tracestate.isascii() and tracestate.isprintable()
    return TraceContext(trace_id, span_id, bool(int(flags, 16) & 1), tracestate if passable else "")


def received(traceparent: str, tracestate: str = "") -> TraceContext | None:
    """As `parse`, with this process's own choice of what it samples."""
    context = parse(traceparent, tracestate)
    if context is None or _state.sampler.parent_based or _state.export is None:
        return context
    chosen = _state.sampler.chooses(context.trace_id)
    return TraceContext(context.trace_id, context.span_id, chosen, context.state)


def new(*, sampled: bool | None = None) -> TraceContext:
    """A trace that begins here; whether it is sampled is the sampler's choice unless it is said."""
    trace_id = f"{_random.getrandbits(128) or 1:032x}"
    return TraceContext(trace_id, new_span_id(), _state.sampler.chooses(trace_id) if sampled is None else sampled)


def new_span_id() -> str:
    return f"{_random.getrandbits(64) or 1:016x}"


class Span:
    """A stretch of work. Used as a context manager, it is the parent of what happens inside the block.

    `start` and `end` are Unix times in nanoseconds; `error` is what went wrong, or empty.
    """

    __slots__ = ("_token", "attributes", "context", "end", "error", "kind", "name", "parent", "start")

    def __init__(
        self, name: str, kind: Kind, context: TraceContext, parent: TraceContext | None, attributes: dict[str, Value]
    ) -> None:
        self.name, self.kind, self.context, self.parent, self.attributes = name, kind, context, parent, attributes
        self.start = time.time_ns()
        self.end = 0
        self.error = ""
        self._token: contextvars.Token[TraceContext | None] | None = None

    def set(self, **attributes: Value) -> None:
        """Adds attributes; a double underscore stands for a dot."""
        self.attributes.update({name.replace("__", "."): value for name, value in attributes.items()})

    def finish(self, error: str = "") -> None:
        """Ends it; exported if it is sampled."""
        self.end, self.error = time.time_ns(), error
        if self.context.sampled and _state.export is not None:
            _state.export(self)

    def __enter__(self) -> Self:
        self._token = _current.set(self.context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._token is not None
        _current.reset(self._token)
        self.finish("" if error is None else f"{type(error).__name__}: {error}"[:300])


class _NoSpan:
    """What `span` gives where nothing will be exported."""

    __slots__ = ()

    def set(self, **attributes: Value) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


_NO_SPAN: Final = _NoSpan()


def span(name: str, kind: Kind = "internal", /, **attributes: Value) -> Span | _NoSpan:
    """`with trace.span("step.AssignWorker"):`; in attribute names a double underscore stands for a dot."""
    if _state.export is None:
        return _NO_SPAN
    made = begin(name, kind)
    if made is None:
        return _NO_SPAN
    if attributes:
        made.set(**attributes)
    return made


class _Inside:
    """A stretch of a trace in which this process makes no span."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: TraceContext) -> None:
        self._context = context

    def set(self, **attributes: Value) -> None: ...

    def __enter__(self) -> Self:
        self._token = _current.set(self._context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _current.reset(self._token)


def serving(name: str, incoming: TraceContext | None) -> Span | _NoSpan | _Inside:
    """For a request that has come in with `incoming`, or without: a block in its trace, or in a new one."""
    if incoming is not None and (_state.export is None or not incoming.sampled):
        return _Inside(incoming)
    if _state.export is None:
        return _NO_SPAN
    if incoming is None:
        return Span(name, "server", new(), None, {})
    return Span(name, "server", TraceContext(incoming.trace_id, new_span_id(), True, incoming.state), incoming, {})


def begin(name: str, kind: Kind) -> Span | None:
    """A span below the present one, or the first of a new trace. Its owner calls `finish`. None: nothing to export."""
    parent = _current.get()
    if _state.export is None or (parent is not None and not parent.sampled):
        return None
    if parent is None:
        return Span(name, kind, new(), None, {})
    return Span(name, kind, TraceContext(parent.trace_id, new_span_id(), True, parent.state), parent, {})
