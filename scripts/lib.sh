# shellcheck shell=bash
# Functions of the other scripts: progress lines, Debian packages, the virtual environment.
# Scripts source this file after `set -euo pipefail`.

umask 022 # what is built here, others must be able to read
REPO=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Debian packages for scripts/vm, and for the build of the C programs that run in the VM.
VM_PACKAGES=(debian-archive-keyring e2fsprogs mmdebstrap openssh-client qemu-system-x86 util-linux)
((EUID == 0)) || VM_PACKAGES+=(uidmap)
C_PACKAGES=(gcc libc6-dev)
export VM_PACKAGES C_PACKAGES # for the script that sources this

# say TEXT...: print a progress line on stderr, apart from results.
say() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
}

# usage: print the comment at the head of the script.
usage() {
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
}

# quietly WHAT CMD...: run CMD; show its output only if it fails.
quietly() {
    local what=$1 log status=0
    shift
    log=$(mktemp)
    "$@" >"$log" 2>&1 </dev/null || status=$?
    if ((status)); then
        say "$what failed (status $status):"
        tail -n 40 "$log" >&2
    fi
    rm -f "$log"
    return "$status"
}

# run_pip HINT CMD...: run pip; after a failure, print HINT if there was no network, else the end of pip's output.
run_pip() {
    local hint=$1 log status=0
    shift
    log=$(mktemp --suffix=.log -t cgpause-pip.XXXXXX)
    "$@" >"$log" 2>&1 </dev/null || status=$?
    if ((status == 0)); then
        rm -f "$log"
    # Exceptions of pip's urllib3 for a host that cannot be found or reached, but not for certificates or HTTP errors,
    # nor for a proxy: only pip's own words say what is wrong with that.
    elif ! grep -q ProxyError "$log" &&
        grep -qE '(NewConnection|ConnectTimeout|ReadTimeout|NameResolution)Error|Network is unreachable' "$log"; then
        say "no network: $hint (pip's output: $log)"
    else
        say "pip failed (status $status). The end of its output, which is in $log:"
        tail -n 20 "$log" >&2
    fi
    return "$status"
}

# missing_packages PKG...: print the Debian packages of the list that are not installed, each on a line.
missing_packages() {
    local package
    for package in "$@"; do
        if [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) != installed ]]; then
            echo "$package"
        fi
    done
}

# need_packages PKG...: install missing Debian packages if root runs this, else exit with the command to run.
need_packages() {
    local missing
    if ! command -v apt-get >/dev/null; then
        tools_or_exit "$@"
        return 0
    fi
    mapfile -t missing < <(missing_packages "$@")
    if ((${#missing[@]} == 0)); then
        return 0
    fi
    if ((EUID != 0)); then
        say "these Debian packages are missing; install them with:"
        printf '    sudo apt-get install --no-install-recommends %s\n' "${missing[*]}" >&2
        exit 1
    fi
    say "installing ${missing[*]}"
    # Ignore errors: a slightly old index is often good enough, and the failing source may be one without our packages.
    quietly "apt-get update" apt-get update || true
    quietly "apt-get install" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "${missing[@]}" || exit 1
}

# tools_or_exit PKG...: on a system without apt, exit if a command of one of these packages is missing.
tools_or_exit() {
    local package missing=()
    for package in "$@"; do
        case $package in
            libc6-dev | python3-venv) ;; # no command has this name; the compiler and Python say what they lack
            *) command -v "$package" >/dev/null || missing+=("$package") ;;
        esac
    done
    if ((${#missing[@]})); then
        say "this is not a Debian system (no apt-get); these commands are needed and missing: ${missing[*]}"
        exit 1
    fi
}

# vm_host_or_exit: exit if this host cannot make the VM's image, which takes packages from the host's own Debian mirror.
vm_host_or_exit() {
    local id
    id=$(sed -n 's/^ID=//p' /etc/os-release | tr -d '"')
    if [[ $id != debian || $(uname -m) != x86_64 ]]; then
        say "the VM is made from Debian's packages for x86-64, on Debian; this host is ${id:-unknown} on $(uname -m)"
        exit 1
    fi
}

# cgroup_v2_mount: print the first cgroup v2 mount with the controllers without which no pod is ever paused; fail if
# there is none.
cgroup_v2_mount() {
    local mount
    while read -r mount; do
        if grep -qsw cpu "$mount/cgroup.controllers" && grep -qsw memory "$mount/cgroup.controllers"; then
            printf '%s\n' "$mount"
            return 0
        fi
    done < <(awk '$3 == "cgroup2" {print $2}' /proc/self/mounts)
    return 1
}

# find_python: print the first Python of at least 3.11 on PATH.
find_python() {
    local python
    for python in python3 python3.{11..15} /usr/bin/python3; do
        if "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$python"
            return 0
        fi
    done
    return 1
}

# venv_is_current: succeed if setup_venv has nothing to do.
venv_is_current() {
    local stamp=$REPO/.venv/cgpause-stamp
    [[ -x $REPO/.venv/bin/python && -f $stamp && $(<"$stamp") == "$(sha256sum <"$REPO/pyproject.toml")" ]]
}

# venv_packages: print the Debian packages without which setup_venv has no Python or no venv module.
venv_packages() {
    local python
    if ! python=$(find_python); then
        printf '%s\n' python3 python3-venv
    elif ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
        echo python3-venv
    fi
}

# setup_venv: make $REPO/.venv with cgpause and its development tools; do nothing while pyproject.toml stays the same.
setup_venv() {
    local python packages
    if venv_is_current; then
        return 0
    fi
    # Two scripts started together must not both fill it.
    exec {venv_lock}<"$REPO/pyproject.toml"
    flock "$venv_lock"
    if ! venv_is_current; then
        mapfile -t packages < <(venv_packages)
        need_packages ${packages[@]+"${packages[@]}"}
        python=$(find_python) || { say "Python 3.11 or newer is needed; none is on PATH"; exit 1; }
        say "setting up .venv with $("$python" --version)"
        "$REPO/.venv/bin/python" -c 'import pip' 2>/dev/null || quietly "python -m venv" "$python" -m venv --clear "$REPO/.venv" || exit 1
        run_pip "the development tools come from pip's index" \
            "$REPO/.venv/bin/python" -m pip install --disable-pip-version-check \
            -e "${REPO}[dev]" || exit 1
        sha256sum <"$REPO/pyproject.toml" >"$REPO/.venv/cgpause-stamp"
    fi
    exec {venv_lock}<&-
}
