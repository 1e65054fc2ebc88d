# tests/cli/test_completion.py checks the options and commands that take files and folders.
# cgpause completes all others itself; if it fails, nothing is offered and no message printed.

complete -c cgpause -f -a '(env _CGPAUSE_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=get-args \
    _TYPER_COMPLETE_ARGS=(commandline -cp | string collect) cgpause 2>/dev/null)'
complete -c cgpause -l config -r -F
complete -c cgpause -n '__fish_seen_subcommand_from bug-report simulate' -F
complete -c cgpause -l cgroup-root -l log-dir -l run-dir -l state-dir -x -a '(__fish_complete_directories)'
