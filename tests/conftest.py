"""For every test: nothing is judged by how fast a shared machine happens to be."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("cgpause", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cgpause")
