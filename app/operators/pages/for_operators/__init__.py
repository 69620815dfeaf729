"""What operators see and change under the prefix."""
