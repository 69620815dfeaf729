"""The order of messages about one aggregate: its last applied number, and what is parked until its number comes."""
