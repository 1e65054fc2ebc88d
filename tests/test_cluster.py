"""The page about oversubscribed clusters: its cells are equal with any number of processes, and it is current."""

from __future__ import annotations

import json
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

from lab.measure.cluster import NODES, Cell, cells, run
from lab.pages.cluster_report import REPORT, safe_pct

from cgpause.offline.simulate import Arm


def test_cells_come_out_the_same_in_several_processes() -> None:
    mine = [Cell("MostAllocated", arm, 1, 120) for arm in (Arm.NONE, Arm.RESERVE)]
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        apart = list(pool.map(run, mine))
    assert json.dumps(apart) == json.dumps([run(cell) for cell in mine])


def test_every_cell_is_asked_for_once() -> None:
    asked = cells((3, NODES))
    assert len(asked) == len(set(asked))
    assert {cell.nodes for cell in asked} == {3, NODES}


def test_what_is_safe_ends_at_the_first_restart() -> None:
    found = [
        {"scoring": "x", "arm": "none", "percent": percent, "restarts": restarts}
        for percent, restarts in ((140, 0), (100, 0), (120, 0), (130, 7))
    ]
    assert safe_pct(found, "x", "none") == 120
    assert safe_pct([{**one, "restarts": 1} for one in found], "x", "none") is None


def test_the_page_is_what_the_results_say() -> None:
    assert REPORT.is_current()
