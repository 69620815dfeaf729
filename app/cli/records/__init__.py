"""``oncegate keys``, ``records`` and ``audit``: the records of a cache or a gateway, and who has changed them."""
