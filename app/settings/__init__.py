"""The settings of the gateway (`GatewaySettings`) and of the worker (`WorkerSettings`), and how they are loaded (`load`)."""
