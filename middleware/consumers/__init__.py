"""The door for consumers of messages: `Subscription`."""
