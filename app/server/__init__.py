"""The client's side of the gateway: HTTP/1.1 connections as bytes, accepted and parsed, and their requests as ASGI."""
