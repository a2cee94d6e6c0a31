"""Metrics and traces: a leaf that every part may import, and that costs next to nothing while nobody asked for them.

`trace` and `metrics` are what the rest of the program calls; they know no OpenTelemetry. `sdk` puts the SDK behind them
and is imported only by `open_telemetry` of `service`, once an endpoint for metrics or a collector was asked for.
"""
