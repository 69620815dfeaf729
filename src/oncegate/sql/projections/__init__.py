"""Read models: the events of a table applied in the transaction that keeps how far they are, and their position for operators."""
