"""The upstream's side of the gateway: `Forwarder` sends a request there and passes its response back."""
