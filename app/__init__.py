"""The gateway process: settings, forwarder, operations, command line. Imports middleware and cache, never the reverse."""
