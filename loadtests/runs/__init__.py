"""Runs of minutes under kills, restarts and failovers, which judge what is recorded: ``python -m loadtests.runs.NAME``.

The measurements, which docs/performance.md publishes, are beside this folder: `scripts/bench`.
"""
