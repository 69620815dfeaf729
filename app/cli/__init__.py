"""The command line: `main` has the commands, each of which is a module here or in the room of its noun."""
