# shellcheck shell=bash
# Written by scripts/release/completions.py: change that.
# cgpause answers itself; where it fails, nothing is offered and nothing is said.
# By name, not "$1": the Tab key shall not run a program that happens to lie in this folder.

_cgpause() {
    COMPREPLY=()
    case $3 in
        --config | --export) compopt -o default ;;
        bug-report | record | replay | simulate | --hash-names | --keep-names | --list)
            if [[ $2 == -* ]]; then _cgpause "$1" "$2" ''; else compopt -o default; fi
            ;;
        --cgroup-root | --log-dir | --run-dir | --state-dir) compopt -o dirnames ;;
        *)
            mapfile -t COMPREPLY < <(
                env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" _CGPAUSE_COMPLETE=complete_bash \
                    cgpause 2>/dev/null
            )
            ;;
    esac
}
complete -F _cgpause cgpause
