# shellcheck shell=bash
# tests/cli/test_completion.py checks the options and commands that take files and folders.
# cgpause completes all others itself; if it fails, nothing is offered and no message printed.
# By name, not "$1": the Tab key must not run a program that happens to lie in this folder.

_cgpause() {
    COMPREPLY=()
    case $3 in
        --config) compopt -o default ;;
        bug-report | simulate | --keep-names | --list)
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
