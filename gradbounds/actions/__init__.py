"""Actions of the commands; a module has the name of its command's flags."""
