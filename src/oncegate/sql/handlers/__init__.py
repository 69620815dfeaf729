"""A delivery's transaction around its handler: one message (handler), a batch (batch), or in the order of numbers (ordered)."""
