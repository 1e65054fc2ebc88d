"""The mutants' modules and tests."""

from __future__ import annotations

from lab.measure.mutants import TESTS
from lab.vm.host import REPO


def test_every_module_and_its_tests_are_there() -> None:
    for name, tests in TESTS.items():
        assert (REPO / "cgpause" / f"{name}.py").is_file()
        assert all(any(REPO.glob(pattern)) for pattern in tests), name
