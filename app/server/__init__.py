"""The client's side of the gateway: an HTTP/1.1 server protocol for ASGI (`InboundConnection`), and its `Acceptor`."""
