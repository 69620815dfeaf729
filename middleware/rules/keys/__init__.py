"""Keys: the header's grammar, the form that a route wants, the digests that look-up keys and fingerprints are made of."""
