"""``oncegate check``: what is wrong, or probably not meant, before it is served, and what another configuration changes."""
