"""Values, errors, parsing, units and paths; nothing here knows cgroups or the daemon."""
