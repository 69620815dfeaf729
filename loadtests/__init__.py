"""Measurements: run by hand, with real servers."""
