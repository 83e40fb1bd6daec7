"""The pages' numbers, commands and links."""
