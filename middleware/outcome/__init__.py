"""What came of a command, as errors, kept results, responses and problems. Pure."""
