"""Settings as they are shown: those in effect one by one, their digest, the schema of their file. Never a secret."""
