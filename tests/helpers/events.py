"""Events of pauses, for tests of what is counted and shown of them."""

from __future__ import annotations

from typing import Any

from cgpause.telemetry.events import Event

S = 1_000_000_000
BOOT = "b1"


def event(what: str, at: float, since_s: float | None, paused_s: float | None = None, /, **more: object) -> Event:
    """Return an event of a pause that began `since_s` after boot; `more` overrides the other fields."""
    uid = more.get("uid", "u1")
    rest: dict[str, Any] = {"uid": uid, "pod": f"default/{uid}", "reason": what, "boot": BOOT}
    since_ns = None if since_s is None else int(since_s * S)
    return Event(at=at, what=what, paused_s=paused_s, since_ns=since_ns, **(rest | more))
