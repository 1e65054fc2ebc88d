"""Looks for better constants of a policy, in the simulation, and says whether what it found is better.

- space: what is searched, bounds and scales of the options, and the way from a point to a configuration
- choose: a trace, a workload or a preset
- subject: what is simulated, and what a run costs: jobs that did not finish, then restarts, then time
- search: the optimiser (Optuna, of the extra `tune`, which only this module imports)
- gain: differences from run to run with confidence intervals, and the verdict on them
- study: all of that, as values
- report and plot: the values as a configuration file, as Markdown, as a picture (matplotlib, of the same extra)
- workers: runs spread over processes
- command: `cgpause tune`
"""

from __future__ import annotations
