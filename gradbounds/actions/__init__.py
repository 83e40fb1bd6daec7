"""What each command computes and prints; a module is named like the command or the flag that it serves."""
