"""How settings are loaded: what gives them, where each value came from, and the one line that a wrong one gets."""
