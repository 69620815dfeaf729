"""Metrics (`Metrics`), counted in memory that processes share, and logs (`configure`)."""
