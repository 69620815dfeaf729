"""Requests that are observed only: each goes to the app untouched, and a copy of it is driven like one under enforcement."""
