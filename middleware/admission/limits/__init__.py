"""Limits: how many attempts run at once, in all and of each caller, and how long something may take."""
