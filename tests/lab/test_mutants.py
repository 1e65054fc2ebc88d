"""The mutants' modules, tests and reasons."""

from __future__ import annotations

from lab.measure.mutants import TESTS
from lab.measure.mutants_reasons import REASONS
from lab.vm.host import REPO


def test_every_module_and_its_tests_are_there() -> None:
    for name, tests in TESTS.items():
        assert (REPO / "cgpause" / f"{name}.py").is_file()
        assert all((REPO / test).exists() for test in tests), name
    assert set(REASONS) <= set(TESTS)
