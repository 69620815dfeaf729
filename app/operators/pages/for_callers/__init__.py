"""What callers read under the prefix: what became of a command, the rules for requests, a page for each problem."""
