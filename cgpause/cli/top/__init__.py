"""`cgpause top`: the live dashboard, a thin loop around pure parts; the daemon never imports any of it.

`values` says what is shown, `reader` reads it (with `observe`), `line` says who would be paused next,
`screen` turns it into lines (with `parts`, `table` and `panes`), `ui` answers keys, `keys` and `terminal` know the
terminal, `app` is the loop.
"""
