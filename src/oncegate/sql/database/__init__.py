"""A database as all of `oncegate.sql` needs it: errors and what they mean, types of columns, misuse, an operator's access."""
