"""Capacity: turns WorkerPools into workers, and workers into records that the control plane schedules on.

On one machine (`local.py`) a worker is a supervised ateom process. Nothing else in the house knows where workers come
from; the rest sees Workers and labels.
"""
