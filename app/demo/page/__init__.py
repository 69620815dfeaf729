"""The demo's page in a browser, and the server that it comes from."""
