"""The settings of the gateway (`Settings`) and of the worker, and where they are read from."""
