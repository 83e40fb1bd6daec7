"""The actions of the commands, one module for each command or view."""
