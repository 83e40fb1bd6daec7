"""What the commands do; a module has the name of its command's flags."""
