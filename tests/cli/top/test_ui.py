"""The effect of every key: from state, key and snapshot to a new state and an action."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.dashboards import MIB, busy_snapshot, make_place, make_pod, make_snapshot, many_pods, pause

from cgpause.cli.top.ui import Act, Deed, Group, Mode, Sort, Ui, cursor, settle, shown_pods, shown_rows, update
from cgpause.cli.top.values import NodeView, PodState, SeenPod
from cgpause.core.model import CgroupId, Mechanism, Owner

SNAPSHOT = many_pods(30)
"""Thirty pods that every sort order puts in the order of their numbers."""
TURNED = replace(
    SNAPSHOT, pods=tuple(replace(seen, pod=replace(seen.pod, name=seen.label[::-1])) for seen in SNAPSHOT.pods)
)
"""The same pods with other names."""


def at(index: int, **changes: object) -> Ui:
    return settle(Ui(selected=SNAPSHOT.pods[index].key, **changes), SNAPSHOT, 10)  # type: ignore[arg-type] # any field


def press(ui: Ui, *keys: str, snapshot: NodeView = SNAPSHOT) -> Ui:
    for key in keys:
        ui, intent = update(ui, key, snapshot, 10)
        assert intent is None
    return ui


def one(deed: Deed, pod: SeenPod) -> Act:
    return Act(deed, (pod,))


def selected_index(ui: Ui) -> int | None:
    return next((place for place, pod in enumerate(SNAPSHOT.pods) if pod.key == ui.selected), None)


@pytest.mark.parametrize(
    ("start", "keys", "selected", "top"),
    [
        (None, ["down"], 1, 0),
        (None, ["up"], 0, 0),
        (None, ["end"], 29, 20),
        (0, ["down"], 1, 0),
        (0, ["up"], 0, 0),
        (5, ["j", "j", "k"], 6, 0),
        (9, ["down"], 10, 1),
        (29, ["down"], 29, 20),
        (0, ["page down"], 10, 1),
        (25, ["page down"], 29, 20),
        (25, ["page up"], 15, 15),
        (5, ["page up"], 0, 0),
        (5, ["end"], 29, 20),
        (5, ["G", "g"], 0, 0),
        (25, ["home"], 0, 0),
        (7, ["left", "right", "tab", "x", "ü"], 7, 0),
    ],
)
def test_keys_that_move(start: int | None, keys: list[str], selected: int, top: int) -> None:
    ui = press(Ui() if start is None else at(start), *keys)

    assert (selected_index(ui), ui.top) == (selected, top)


def test_the_cursor_rests_on_the_first_pod_until_it_is_moved_and_after_escape() -> None:
    for ui in (settle(Ui(), SNAPSHOT, 10), press(Ui(), "down", "esc")):
        assert ui.selected is None
        for snapshot in (SNAPSHOT, TURNED):
            assert cursor(snapshot, ui) == shown_pods(snapshot, ui)[0]


def test_the_sort_goes_round() -> None:
    ui = Ui()
    seen = []
    for _ in range(6):
        ui = press(ui, "s")
        seen.append(ui.sort)

    assert seen == [Sort.MEMORY, Sort.CPU, Sort.PAUSED, Sort.NAME, Sort.DEMAND, Sort.MEMORY]


def test_the_order_is_reversed_and_back() -> None:
    usual = shown_pods(SNAPSHOT, Ui())
    reverse = press(Ui(), "S")

    assert shown_pods(SNAPSHOT, reverse) == usual[::-1]
    assert shown_pods(SNAPSHOT, press(reverse, "S")) == usual


def test_q_quits_from_the_list_and_from_the_help() -> None:
    for ui in (Ui(), at(3, describing=True), Ui(mode=Mode.HELP)):
        assert press(ui, "q").mode is Mode.QUIT


@pytest.mark.parametrize("key", ["?", "h"])
def test_help_is_left_with_any_key_which_does_nothing_else(key: str) -> None:
    helping = press(at(3), key)
    assert helping.mode is Mode.HELP

    for leave in ("p", "esc", "down", "?"):
        ui = press(helping, leave)
        assert (ui.mode, ui.selected, ui.asked) == (Mode.BROWSE, SNAPSHOT.pods[3].key, None)


@pytest.mark.parametrize("leave", ["e", "d", "enter", "esc"])
def test_the_description_is_scrolled_and_left(leave: str) -> None:
    ui = press(at(3), "enter", "down", "page down", "up", "down")
    assert (ui.describing, selected_index(ui), ui.scroll) == (True, 3, 11)
    assert press(ui, "home").scroll == 0

    assert not press(ui, leave).describing
    assert press(ui, leave, "enter").scroll == 0


def test_a_description_never_changes_to_another_pod() -> None:
    ui = press(at(3), "enter")

    assert not settle(ui, WITHOUT_3, 10).describing
    hidden = settle(replace(ui, filter="-29"), SNAPSHOT, 10)
    assert (hidden.describing, cursor(SNAPSHOT, hidden)) == (True, SNAPSHOT.pods[3])


@pytest.mark.parametrize(("key", "deed"), [("p", Deed.PAUSE), ("f", Deed.FREEZE)])
@pytest.mark.parametrize("answer", ["y", "Y"])
@pytest.mark.parametrize(("start", "index"), [(Ui(), 0), (at(3), 3)], ids=["at-the-start", "selected"])
def test_a_deed_is_done_after_a_yes_only(key: str, deed: Deed, answer: str, start: Ui, index: int) -> None:
    asking = press(start, key)
    pod = SNAPSHOT.pods[index]
    assert asking.asked == one(deed, pod)

    ui, intent = update(asking, answer, SNAPSHOT)

    assert intent == one(deed, pod)
    assert ui.asked is None


@pytest.mark.parametrize("answer", ["n", "N", "enter", "esc", " ", "p", "q", "down", "backspace"])
def test_anything_else_is_a_no(answer: str) -> None:
    ui, intent = update(press(at(3), "p"), answer, SNAPSHOT)

    assert intent is None
    assert (ui.asked, ui.message) == (None, "nothing was done")


def test_the_pod_that_was_asked_about_is_acted_on_whatever_moves_meanwhile() -> None:
    asking = press(at(3), "p")
    turned = replace(SNAPSHOT, pods=SNAPSHOT.pods[::-1])

    _, intent = update(settle(asking, turned, 10), "y", turned)

    assert intent == one(Deed.PAUSE, SNAPSHOT.pods[3])


PAUSED = make_pod("default/paused", PodState.PAUSED, paused=pause(5, owner=Owner.MANUAL))
FROZEN = make_pod("default/frozen", PodState.PAUSED, paused=pause(5, owner=Owner.MANUAL, mechanism=Mechanism.FREEZE))
PROTECTED = make_pod("kube-system/dns", PodState.PROTECTED, protected="namespace kube-system (protect.namespaces)")
BROKEN = make_pod("default/broken", PodState.ERROR, error="EIO")
RUNNING = make_pod("default/web")


@pytest.mark.parametrize(
    ("pod", "key", "said"),
    [
        (FROZEN, "p", "default/frozen is already frozen by hand"),
        (PAUSED, "p", "default/paused is already paused by hand"),
        (PAUSED, "f", "default/paused is already paused by hand"),
        (RUNNING, "r", "default/web is not paused"),
        (PROTECTED, "p", "protected: namespace kube-system (protect.namespaces); cgpause pause --force"),
        (PROTECTED, "f", "protected: namespace kube-system"),
    ],
)
def test_what_cannot_be_done_is_said_and_not_asked(pod: SeenPod, key: str, said: str) -> None:
    ui = press(Ui(selected=pod.key), key, snapshot=make_snapshot(pod))

    assert (ui.asked, ui.failed) == (None, True)
    assert said in ui.message


@pytest.mark.parametrize(("key", "deed"), [("p", Deed.PAUSE), ("f", Deed.FREEZE)])
def test_what_the_daemon_holds_can_be_taken_over(key: str, deed: Deed) -> None:
    pod = make_pod("default/shop", PodState.PAUSED, paused=pause(5))

    assert press(Ui(selected=pod.key), key, snapshot=make_snapshot(pod)).asked == one(deed, pod)


@pytest.mark.parametrize("pod", [PAUSED, PROTECTED, BROKEN])
def test_resuming_is_asked_wherever_a_record_may_be(pod: SeenPod) -> None:
    """Also for a protected pod: a pod with a damaged record is shown as protected."""
    assert press(Ui(selected=pod.key), "r", snapshot=make_snapshot(pod)).asked == one(Deed.RESUME, pod)


def test_marked_pods_are_acted_on_together_and_then_lose_their_marks() -> None:
    ui = press(at(3), " ", " ", "down", " ", "up", "up", " ")  # marks 3, 4 and 6, and takes the mark of 5 back
    marked = [place for place, pod in enumerate(SNAPSHOT.pods) if pod.key in ui.marked]
    assert marked == [3, 4, 5, 6]
    ui = press(at(3, marked=ui.marked), "down", "down", " ")
    asking = press(ui, "f")
    assert asking.asked == Act(Deed.FREEZE, tuple(SNAPSHOT.pods[place] for place in (3, 4, 6)))

    done, intent = update(asking, "y", SNAPSHOT)
    assert (intent, done.marked) == (asking.asked, frozenset())
    assert press(asking, "n").marked == ui.marked
    assert press(ui, "esc").marked == frozenset()
    assert settle(ui, make_snapshot(*SNAPSHOT.pods[:4]), 10).marked == {SNAPSHOT.pods[3].key}


def test_a_question_about_the_described_pod_leaves_the_marks() -> None:
    ui = press(at(3), " ", " ")
    asking = press(at(5, marked=ui.marked), "enter", "f")
    assert asking.asked == one(Deed.FREEZE, SNAPSHOT.pods[5])
    done, _ = update(asking, "y", SNAPSHOT)
    assert done.marked == ui.marked


def test_of_marked_pods_those_that_cannot_be_paused_are_skipped_and_counted() -> None:
    snapshot = make_snapshot(RUNNING, PROTECTED, PAUSED)
    ui = Ui(marked=frozenset(pod.key for pod in snapshot.pods))

    assert press(ui, "p", snapshot=snapshot).asked == Act(Deed.PAUSE, (RUNNING,), 2)
    refused = press(replace(ui, marked=ui.marked - {RUNNING.key}), "p", snapshot=snapshot)
    assert refused.asked is None
    assert "protected: namespace kube-system" in refused.message
    assert refused.message.endswith("; and 1 more cannot be paused")


def test_pods_are_grouped_by_namespace_each_with_its_totals() -> None:
    pods = [
        make_pod("b/1", current_bytes=1),
        make_pod("a/2", current_bytes=2, place=make_place(7, 9)),
        make_pod("b/3", PodState.PAUSED, paused=pause(5), current_bytes=30),
        make_pod("a/4", current_bytes=40),
    ]
    ui = press(Ui(sort=Sort.MEMORY), "n")

    rows = shown_rows(make_snapshot(*pods), ui)

    assert [row.namespace if isinstance(row, Group) else row.label for row in rows] == [
        *("a", "a/4", "a/2", "b", "b/3", "b/1"),
    ]
    assert [row for row in rows if isinstance(row, Group)] == [Group("a", 2, 0, 42, 7), Group("b", 2, 1, 31, 0)]
    assert not press(ui, "n").grouped


@pytest.mark.parametrize(("index", "rows", "top"), [(0, 3, 0), (2, 3, 1), (3, 3, 3), (3, 1, 5)])
def test_the_first_pod_of_a_namespace_is_shown_with_its_heading(index: int, rows: int, top: int) -> None:
    snapshot = make_snapshot(*(make_pod(f"{namespace}/{number}") for namespace in "ab" for number in range(3)))
    ui = Ui(grouped=True, sort=Sort.NAME)
    pods = shown_pods(snapshot, ui)

    down = settle(replace(ui, selected=pods[index].key), snapshot, rows)
    up = settle(replace(ui, selected=pods[index].key, top=99), snapshot, rows)

    assert down.top == top
    assert up.top <= shown_rows(snapshot, ui).index(pods[index])


def test_a_message_goes_with_the_next_key() -> None:
    assert press(replace(at(3), message="done", failed=True), "down").message == ""


def test_typing_a_filter() -> None:
    typing = press(Ui(), "/", "-", "0", "0", "q")
    assert (typing.mode, typing.filter) == (Mode.FILTER, "-00q")
    assert shown_pods(SNAPSHOT, typing) == []

    typing = press(typing, "backspace")
    assert len(shown_pods(SNAPSHOT, typing)) == 10
    assert press(typing, "down", "down").selected == SNAPSHOT.pods[2].key
    kept = press(typing, "enter")
    assert (kept.mode, kept.filter) == (Mode.BROWSE, "-00")
    assert press(kept, "esc").filter == ""
    dropped = press(typing, "esc")
    assert (dropped.mode, dropped.filter) == (Mode.BROWSE, "")


@pytest.mark.parametrize(
    ("typed", "labels"),
    [
        ("KUBE-system", ["kube-system/dns"]),
        ("paused", ["ops/debug", "batch/report-1", "batch/report-2"]),
        ("would", ["batch/report-2"]),
        ("frozen", ["ops/debug"]),
        ("by the daemon", ["batch/report-1"]),
        ("protected", ["kube-system/dns"]),
        ("burstable service", ["default/idle"]),
    ],
)
def test_the_filter_looks_at_name_class_and_state(typed: str, labels: list[str]) -> None:
    assert [pod.label for pod in shown_pods(busy_snapshot(), Ui(filter=typed))] == labels


def labels(ui: Ui, *pods: SeenPod) -> list[str]:
    return [pod.label for pod in shown_pods(make_snapshot(*pods), ui)]


def test_largest_need_first_and_what_is_paused_by_hand_before_it() -> None:
    small = make_pod("a/small", place=make_place(1, 9), current_bytes=900)
    large = make_pod("a/large", place=make_place(9, 9), current_bytes=1)
    idle, big = make_pod("a/idle", current_bytes=5), make_pod("a/big", current_bytes=500)
    by_hand = make_pod("z/paused", PodState.PAUSED, paused=pause(1, owner=Owner.MANUAL), place=None, current_bytes=0)

    assert labels(Ui(), small, large, idle, big, by_hand) == ["z/paused", "a/large", "a/small", "a/big", "a/idle"]


def test_where_the_policy_knows_no_needs_its_ranks_are_the_order() -> None:
    pods = [make_pod(f"a/{rank}", rank=rank, place=None, current_bytes=rank * MIB) for rank in (3, 1, 2)]

    assert labels(Ui(), *pods) == ["a/1", "a/2", "a/3"]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        (Sort.MEMORY, ["a/b", "a/a", "a/c"]),
        (Sort.CPU, ["a/a", "a/c", "a/b"]),
        (Sort.PAUSED, ["a/c", "a/b", "a/a"]),
        (Sort.NAME, ["a/a", "a/b", "a/c"]),
    ],
)
def test_other_orders_are_stable_by_name(sort: Sort, expected: list[str]) -> None:
    pods = [
        make_pod("a/c", PodState.PAUSED, paused=pause(90), current_bytes=None, cpu_millicores=1.0),
        make_pod("a/b", PodState.PAUSED, paused=pause(5), current_bytes=9, cpu_millicores=None),
        make_pod("a/a", current_bytes=1, cpu_millicores=5.0),
    ]

    assert labels(Ui(sort=sort), *pods) == expected


def test_the_selection_stays_on_its_pod_when_the_order_changes() -> None:
    ui = at(3)

    assert settle(ui, TURNED, 10).selected == ui.selected


WITHOUT_3 = replace(SNAPSHOT, pods=SNAPSHOT.pods[:3] + SNAPSHOT.pods[4:])


def test_when_the_selected_pod_is_gone_the_cursor_goes_back_to_the_first() -> None:
    """It must not go to a neighbour: the operator's next key would act on a pod that looks like the chosen one."""
    ui = settle(at(3), WITHOUT_3, 10)

    assert (ui.selected, ui.top) == (None, 0)
    assert settle(at(29), replace(SNAPSHOT, pods=SNAPSHOT.pods[:5]), 10).selected is None


def test_a_question_about_a_pod_that_is_gone_is_withdrawn() -> None:
    ui = settle(press(at(3), "p"), WITHOUT_3, 10)

    assert (ui.asked, ui.failed) == (None, True)
    assert ui.message == f"{SNAPSHOT.pods[3].label} is gone: nothing was done"
    assert update(ui, "y", WITHOUT_3)[1] is None


def test_a_question_about_a_pod_that_a_filter_hides_stays() -> None:
    asking = replace(press(at(3), "p"), filter="-29")

    assert settle(asking, SNAPSHOT, 10).asked == asking.asked


@pytest.mark.parametrize("key", ["down", "up", "end", "page down", "p", "e", "s", "/", "y", "esc"])
def test_no_key_minds_that_there_are_no_pods(key: str) -> None:
    ui = Ui(selected=CgroupId("gone", 1), top=3)

    assert update(settle(ui, make_snapshot(), 5), key, make_snapshot(), 5)[1] is None
