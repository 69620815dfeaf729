"""The transactional inbox: `Inbox` (inbox), what it forgets (cleanup), and an operator's view of it."""
