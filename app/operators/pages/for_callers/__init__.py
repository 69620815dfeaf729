"""The pages for callers: what became of a command, the rules for requests, a page for each problem."""
