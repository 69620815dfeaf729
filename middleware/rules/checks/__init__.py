"""Checks when a process starts: arguments, routes, and whether the rules that make addresses are those of before."""
