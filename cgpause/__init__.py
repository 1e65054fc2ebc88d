"""cgpause pauses Kubernetes pods through cgroup v2 before the OOM killer kills them."""

import importlib
import sys
from types import ModuleType

__version__ = "0.1.0"

# dataclasses imports inspect, and that ast and dis, only to sign classes without a docstring, of which we have
# none: 0.5 MiB of the daemon's memory. It gets a stand-in that loads the real one should anything of it be used after
# all. Here, because it has to come before any import of dataclasses.
if not {"dataclasses", "inspect"} & sys.modules.keys():
    _inspect = ModuleType("inspect")
    _inspect.__getattr__ = lambda name: getattr(importlib.import_module("inspect"), name)  # type: ignore[method-assign]
    sys.modules["inspect"] = _inspect
    import dataclasses as _dataclasses  # noqa: F401

    del sys.modules["inspect"]  # the real one for all other modules
