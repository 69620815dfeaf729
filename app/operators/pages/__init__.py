"""What is under the prefix, by FastAPI: its paths, who may have which, and a client of them."""
