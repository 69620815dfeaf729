"""The pages about records: lists, one of them, what is found by an id, what is of unknown outcome."""
