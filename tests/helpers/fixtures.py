"""Short names for the types of pytest's fixtures."""

from __future__ import annotations

import pytest

Patch = pytest.MonkeyPatch
Log = pytest.LogCaptureFixture
Capture = pytest.CaptureFixture[str]
