"""A running gateway is replaced by a new one, which takes over its sockets."""
