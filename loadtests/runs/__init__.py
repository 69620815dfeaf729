"""Runs of minutes under kills, restarts and failovers, each ``python -m loadtests.runs.NAME``: they judge what is recorded, not how fast.

The measurements, which docs/performance.md publishes, are beside this folder: `scripts/bench`.
"""
