"""The upstream's side of the gateway: `Forwarder` sends a request there and its response back."""
