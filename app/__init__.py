"""Gateway and worker: settings, forwarder, operations, command line. Imports middleware and cache, never the reverse."""
