"""Replacement of names by hashes in text for strangers: a pure function of the text, the names and a salt.

With one salt, the same name always becomes the same hash, so a reader can follow a pod through all files of a bundle.
The salt is thrown away, so names cannot be tried against the hashes.
"""

from __future__ import annotations

import hmac
import json
import re
from collections.abc import Set as AbstractSet
from string import ascii_lowercase, ascii_uppercase

from cgpause.core.errors import printable

WELL_KNOWN = frozenset(
    {
        *("default", "kube-node-lease", "kube-public", "kube-system", "localhost", "nobody", "root"),
        *("admin", "core", "debian", "ec2-user", "fedora", "ubuntu", "vagrant"),
    }
)
"""Names that many nodes and common images have: they reveal nothing, and stay."""
_ALIKE = str.maketrans(ascii_uppercase + "_", ascii_lowercase + "-")
_HASH = re.compile(r"h[0-9a-f]{10}")
# A name begins where no letter or digit is before it, or after an escape of JSON, of Python or of a systemd unit.
_START = r"(?:(?<![a-z0-9])|(?<=\\[nrtbf])|(?<=\\x[0-9a-f]{2})|(?<=\\u[0-9a-f]{4}))"
# A pod's UID in either spelling, ids of containers, boots and invocations. "pod" ends in a hexadecimal digit.
_HEX = r"[0-9A-Fa-f]"
_ID = re.compile(rf"(?P<pod>pod)?(?P<id>{_HEX}{{8}}(?:[-_]{_HEX}{{4}}){{3}}[-_]{_HEX}{{12}}|{_HEX}{{32,}})")
_POD = r'\bpod(?:="?|": ?")'
"""The key before a pod in logfmt and in JSON."""
_LABEL = re.compile(
    rf"(?P<before>(?<![\w./-])(?:{_POD})?)(?P<namespace>[A-Za-z0-9][A-Za-z0-9-]*)/(?P<name>[\w.*?\[\]!-]*[\w*?\]])"
)
_NAMESPACE = re.compile(r"(?<=namespace )[A-Za-z0-9][A-Za-z0-9-]*")
_CONFIGURED = re.compile(r"(?<=^namespaces = \[).*?(?=\]$)", re.MULTILINE | re.DOTALL)
_JSON = r'(?:null|"(?:[^"\\]|\\.)*")'
_PAIR = re.compile(rf'"namespace": {_JSON},\s*"name": {_JSON}')


def hashed(name: str, salt: bytes) -> str:
    """Return the hash of a name: letters and digits only, so that it is one word in any text."""
    return "h" + hmac.new(salt, _alike(name).encode(errors="surrogatepass"), "sha256").hexdigest()[:10]


class Redactor:
    """Replaces names in texts by hashes, in any spelling: with - or _, in capitals, after an escape."""

    def __init__(
        self, namespaces: AbstractSet[str], names: AbstractSet[str], public: AbstractSet[str], salt: bytes
    ) -> None:
        """Compile the names to hide.

        `namespaces` and `names`, which may be globs, are hidden wherever they stand as words. One that is also in
        `public` is an ordinary word of cgpause: it is hidden only where it can only be a name, as in a label
        (`namespace/name`) or after the word namespace.
        """
        self._salt = salt
        self._namespaces = {*map(_alike, namespaces), *WELL_KNOWN}
        self._spellings: dict[str, str] = {}
        kept = {*map(_alike, public), *WELL_KNOWN}
        for name in namespaces | names:
            if _alike(name) not in kept and any(char.isalnum() for char in name):
                for spelling in (name, printable(name), json.dumps(name)[1:-1]):
                    self._spellings[_alike(spelling)] = name
        longest_first = sorted(self._spellings, key=len, reverse=True)
        # A unit's name has \x2d for a dash.
        known = "|".join(map(re.escape, longest_first)).replace(r"\-", r"(?:-|\\x2d)")
        self._known = re.compile(f"{_START}(?:{known or '(?!)'})(?![a-z0-9])")

    def redact(self, text: str) -> str:
        """Return the text with a hash for each name."""
        result, done = "", 0
        for found in self._known.finditer(_alike(text)):
            result += text[done : found.start()]
            result += self._hide(self._spellings.get(found[0], found[0].replace(r"\x2d", "-")))
            done = found.end()
        text = result + text[done:]
        text = _CONFIGURED.sub(lambda found: re.sub(r'[^",\s]+', lambda glob: self._hide(glob[0]), found[0]), text)
        text = _PAIR.sub(lambda found: re.sub('(?<=: ")[^"]+', lambda name: self._hide(name[0]), found[0]), text)
        text = _LABEL.sub(self._label, text)
        text = _NAMESPACE.sub(self._namespace, text)
        # Last: the name of a pod may end in such an id, and is hidden as a whole.
        return _ID.sub(lambda found: (found["pod"] or "") + hashed(found["id"], self._salt), text)

    def _label(self, found: re.Match[str]) -> str:
        if not found["before"] and _alike(found["namespace"]) not in self._namespaces:
            return found[0]
        return f"{found['before']}{self._hide(found['namespace'])}/{self._hide(found['name'])}"

    def _namespace(self, found: re.Match[str]) -> str:
        return self._hide(found[0]) if _alike(found[0]) in self._namespaces else found[0]

    def _hide(self, glob: str) -> str:
        """Return a glob or name with a hash for each part: of `team-a/*`, the hash of `team-a`, and `/*`."""
        return re.sub(r"[^/]*[^/*?\s][^/]*", self._part, glob)

    def _part(self, found: re.Match[str]) -> str:
        is_kept = _alike(found[0]) in WELL_KNOWN or _HASH.fullmatch(found[0])
        return found[0] if is_kept else hashed(found[0], self._salt)


def _alike(text: str) -> str:
    """Return the text, of the same length, in the spelling in which names are compared."""
    return text.translate(_ALIKE)


def names_in(text: str) -> tuple[set[str], set[str]]:
    """Return the namespaces, and the pods, containers, users and globs of rules, in a log or a history, gone ones too.

    Users stand in the reasons of pauses and resumes by operators, and in the paths of home folders. Globs stand in the
    reasons why pods are protected; the rule may have been changed since.
    """
    pods = re.findall(rf"{_POD}(?:([A-Za-z0-9.-]+)/)?([A-Za-z0-9.-]+)", text)
    users = re.findall(r"/home/([^\s/\"']+)", text)
    users += re.findall(r"cgpause (?:pause|resume|resume --all|top) by ([^\s\"]+)", text)
    names = {pod for _, pod in pods} | {user.rstrip(",.:;)") for user in users} - {"uid", ""}
    # Containers' ids, which are shortened, so their length does not identify them.
    for ids in re.findall(r'\bcontainers(?:="?|": ?")([0-9a-f]{12}(?:,[0-9a-f]{12})*)', text):
        names |= set(ids.split(","))
    globs = set(re.findall(r"\[\[pods\]\] match = '([^'\n]+)'", text))
    namespaces = set(re.findall(r"namespace (\S+) \(protect\.namespaces\)", text))
    namespaces.update(namespace for namespace, _ in pods if namespace)
    namespaces.update(*(glob.split("/") for glob in globs))
    return namespaces, names | globs
