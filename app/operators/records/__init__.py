"""Records: listed, the newest first, resolved, released, purged, counted."""
