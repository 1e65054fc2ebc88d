"""Values, errors, parsing, units and paths; nothing here opens a file."""
