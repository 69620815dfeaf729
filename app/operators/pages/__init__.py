"""The paths under the prefix, by FastAPI: who may have which, and a client of them."""
