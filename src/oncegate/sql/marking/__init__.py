"""Decisions about messages in a session's transaction: by markers (marker_writer), or by their numbers (sequence_writer)."""
