"""Replacement of names by hashes in text for strangers: a pure function of the text, the names and a salt.

With one salt, the same name always becomes the same hash, so a reader can follow a pod through all files of a bundle.
The salt is thrown away, so names cannot be tried against the hashes.
"""

from __future__ import annotations

import hmac
import json
import re
from bisect import bisect_right
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cgpause.core.errors import printable

WELL_KNOWN = frozenset(
    {
        *("default", "kube-node-lease", "kube-public", "kube-system", "localhost", "nobody", "root"),
        *("admin", "core", "debian", "ec2-user", "fedora", "ubuntu", "vagrant"),
    }
)
"""Names that many nodes and common images have: they reveal nothing, and stay."""
_DIGITS = 10
_LONGEST = 256
"""Longest name: that of a host or pod has at most 253 characters."""

# The characters of names in Kubernetes, of hosts and of nearly all users; the name of a cgroup has _ in place of -.
_RUN = re.compile(r"[A-Za-z0-9]+(?:[._-]+[A-Za-z0-9]+)*")
_ESCAPE = re.compile(r"u[0-9A-Fa-f]{4}|x[0-9A-Fa-f]{2}|[nrtbf]")
# A pod's UID in either spelling, ids of containers, boots and invocations. "pod" ends in a hexadecimal digit.
_HEX = r"[0-9A-Fa-f]"
_ID = re.compile(rf"(?P<pod>pod)?(?P<id>{_HEX}{{8}}(?:[-_]{_HEX}{{4}}){{3}}[-_]{_HEX}{{12}}|{_HEX}{{32,}})")
_LABEL = re.compile(
    r"(?P<before>(?<![\w./-])(?:\bpod=\"?)?)(?P<namespace>[A-Za-z0-9][A-Za-z0-9-]*)/(?P<name>[\w.*?\[\]!-]*[\w*?\]])"
)
_NAMESPACE = re.compile(r"(?<=namespace )(?P<namespace>[A-Za-z0-9][A-Za-z0-9-]*)")
_CONFIGURED = re.compile(r"(?<=^namespaces = \[).*(?=\]$)", re.MULTILINE)
_NAME_KEYS = frozenset({"containers", "name", "namespace", "pod", "uid", "uids"})


@dataclass(frozen=True)
class HiddenNames:
    """The names to hide.

    `namespaces` are hidden in labels (`namespace/name`) and after the word namespace; `names` are hidden everywhere.
    `globs` are those of rules. A name that is also in `public` is an ordinary word of cgpause: it is hidden only where
    it can only be a name.
    """

    namespaces: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    globs: frozenset[str] = frozenset()
    public: frozenset[str] = field(default=frozenset(), repr=False)

    @cached_property
    def everywhere(self) -> frozenset[str]:
        """Names to hide wherever they stand as a word, in one spelling."""
        plain = (name for name in self.namespaces | self.names | self.globs if _RUN.fullmatch(name))
        return frozenset(map(_alike, plain)) - frozenset(map(_alike, self.public)) - WELL_KNOWN

    @cached_property
    def labelled(self) -> frozenset[str]:
        """Namespaces in one spelling, also those that are ordinary words."""
        return frozenset(map(_alike, self.namespaces | WELL_KNOWN))

    @cached_property
    def odd(self) -> dict[str, str]:
        """Names with other characters, and globs, in each escaped spelling."""
        found = self.namespaces | self.names | self.globs
        odd = [name for name in found if not _RUN.fullmatch(name) and any(char.isalnum() for char in name)]
        return {spelling: name for name in odd for spelling in (json.dumps(name)[1:-1], printable(name), name)}

    @cached_property
    def odd_pattern(self) -> re.Pattern[str] | None:
        """An expression that finds these names; they are few."""
        if not self.odd:
            return None
        return re.compile("|".join(map(re.escape, sorted(self.odd, key=len, reverse=True))))


def hashed(name: str, salt: bytes) -> str:
    """Return the hash of a name: letters and digits only, so that it is one word in any text."""
    return "h" + hmac.new(salt, _alike(name).encode(errors="surrogatepass"), "sha256").hexdigest()[:_DIGITS]


def redact(text: str, names: HiddenNames, salt: bytes) -> str:
    """Return the text with a hash for each name in any spelling: with - or _, in capitals, after an escape."""
    if names.odd_pattern is not None:
        text = names.odd_pattern.sub(lambda found: hidden_glob(names.odd[found[0]], salt), text)
    text = text.replace("\\x2d", "-")  # as systemd has a dash in a unit's name
    text = _CONFIGURED.sub(lambda found: re.sub('[^", ]+', lambda glob: hidden_glob(glob[0], salt), found[0]), text)
    text = _LABEL.sub(lambda found: _label(found, names, salt), text)
    text = _NAMESPACE.sub(lambda found: _namespace(found["namespace"], names, salt), text)
    text = _RUN.sub(lambda found: _run(found, names.everywhere, salt), text)
    # Last: the name of a pod may end in such an id, and is hidden as a whole.
    return _ID.sub(lambda found: (found["pod"] or "") + hashed(found["id"], salt), text)


def redact_values(values: Any, names: HiddenNames, salt: bytes, key: str | None = None) -> Any:  # noqa: ANN401 - JSON
    """Return a JSON document with a hash for each name; values of the keys in _NAME_KEYS are names."""
    if isinstance(values, Mapping):
        return {name: redact_values(value, names, salt, name) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [redact_values(value, names, salt, key) for value in values]
    if not isinstance(values, str):
        return values
    if key not in _NAME_KEYS:
        return redact(values, names, salt)
    return re.sub(r"[^/, ]+", lambda found: _kept_or_hashed(found[0], salt), values)


def hidden_glob(glob: str, salt: bytes) -> str:
    """Return a glob or name with a hash for each part: of `team-a/*`, the hash of `team-a`, and `/*`."""
    return re.sub(r"[^/]*[^/*?\s][^/]*", lambda found: _kept_or_hashed(found[0], salt), glob)


def _kept_or_hashed(name: str, salt: bytes) -> str:
    return name if _alike(name) in WELL_KNOWN else hashed(name, salt)


def _alike(name: str) -> str:
    return name.lower().replace("_", "-")


def _namespace(name: str, names: HiddenNames, salt: bytes) -> str:
    return _kept_or_hashed(name, salt) if _alike(name) in names.labelled else name


def _label(found: re.Match[str], names: HiddenNames, salt: bytes) -> str:
    if found["before"] or _alike(found["namespace"]) in names.labelled:
        return f"{found['before']}{_kept_or_hashed(found['namespace'], salt)}/{hidden_glob(found['name'], salt)}"
    return found[0]


def _run(found: re.Match[str], names: AbstractSet[str], salt: bytes) -> str:
    """Return a run of letters, digits and . _ - with the longest names in it replaced, from the left."""
    run = found[0]
    pieces = list(re.finditer("[A-Za-z0-9]+", run))
    starts, ends = [piece.start() for piece in pieces], [piece.end() for piece in pieces]
    if found.start() and found.string[found.start() - 1] == "\\" and (escape := _ESCAPE.match(run)):
        starts.insert(1, escape.end())
    result, done = "", 0
    for start in starts:
        if start < done:
            continue
        for end in reversed(ends[bisect_right(ends, start) : bisect_right(ends, start + _LONGEST)]):
            if _alike(run[start:end]) in names:
                result += run[done:start] + hashed(run[start:end], salt)
                done = end
                break
    return result + run[done:]


def names_in_labels(text: str) -> tuple[set[str], set[str]]:
    """Return the namespaces, and the pods and containers, in a log or a history, gone ones too."""
    namespaces, names = set(), set()
    for found in re.finditer(r'\bpod(?:=|": )"?([A-Za-z0-9.-]+)(?:/([A-Za-z0-9.-]+))?', text):
        if found[2]:
            namespaces.add(found[1])
        names.add(found[2] or found[1])
    for ids in re.findall(r'\bcontainers="?([0-9a-f]{12}(?:,[0-9a-f]{12})*)', text):
        names |= set(ids.split(","))  # shortened, so their length does not identify them
    return namespaces, names


def users_in(text: str) -> set[str]:
    """Return the users in the reasons of pauses and resumes by operators, and in the paths of home folders."""
    found = re.findall(r"/home/([^\s/\"']+)", text)
    found += re.findall(r"cgpause (?:pause|resume|resume --all|top) by ([^\s\"]+)", text)
    return {name.rstrip(",.:;)") for name in found} - {"uid", ""}
