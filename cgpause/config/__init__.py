"""Options: their names, limits and defaults, the configuration file, and the daemon's command line."""
