"""One command with a limit of seconds: `command`."""
