"""Commands that need a person: dead letters, singly and by their error, and the streams that they come from."""
