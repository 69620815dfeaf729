"""The operations described: what they send and get, as models, and the OpenAPI description that is made of them."""
