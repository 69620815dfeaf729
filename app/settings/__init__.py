"""The settings of the gateway (`GatewaySettings`) and of the worker (`WorkerSettings`), and what must hold between them."""
