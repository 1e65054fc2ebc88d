"""`cgpause top`: the live dashboard, a thin loop around pure parts; the daemon never imports it.

`reader` reads the `values` of a snapshot, and `line` finds the pod that would be paused next. `screen` (with `head`,
`parts`, `table` and `panes`) turns a snapshot into lines. `ui` handles keys, `keys` and `terminal` the terminal's
bytes, and `app` has the loop.
"""
