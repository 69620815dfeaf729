"""The pages for operators: what they see and change under the prefix."""
