"""The console: what operators see and change in a browser, from the models and functions that the API under the prefix calls."""
