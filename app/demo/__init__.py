"""``oncegate demo`` (`run`): a payments service, and the gateway in front of it."""
