"""The actions of the commands: each module computes and prints the result of one command or view."""
