"""Headers: those that are added to responses, and those that name a request or its trace."""
