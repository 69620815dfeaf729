"""The transactional inbox: `Inbox` (inbox), its handlers' transactions (handler, batch, transaction), an operator's view."""
