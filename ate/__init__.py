"""`ate`: very many stateful, sandboxed, mostly idle programs on few warm workers. One program is the whole platform."""

__version__ = "0.1.0"
