# shellcheck shell=sh
# Runs cgpause.restore with the Python of its installation or, if that no longer works, with the node's:
#   sh .../share/cgpause/restore.sh [options of cgpause.restore]
#
# An upgrade of the distribution may remove the Python of a virtual environment, or replace it with another version that
# does not find the modules. The unit's ExecStopPost= must resume pods in this case too. The modules that it needs
# import nothing but the standard library, so any Python from 3.11 on can run them. tests/restore/test_launcher.py runs
# this script, and tests/vm/systemd runs it under systemd.
set -u
prefix=${0%/share/cgpause/restore.sh}
version='import sys; sys.exit(sys.version_info < (3, 11))'
run='import sys; sys.path.append(sys.argv.pop(1)); from cgpause.restore import main; sys.exit(main())'

"$prefix/bin/python" -I -m cgpause.restore "$@"
status=$?
# 0: done; 2: bad command line; 6: a pod could not be resumed. Another Python would end with the same status, and so it
# would if this one runs at all.
case $status in 0 | 2 | 6) exit $status ;; esac
"$prefix/bin/python" -I -c 'import cgpause.restore' 2>/dev/null && exit $status
for python in /usr/bin/python3 /usr/bin/python3.1[1-9] /usr/local/bin/python3 /usr/local/bin/python3.1[1-9]; do
    for site in "$prefix"/lib/python3*/site-packages; do
        if [ -d "$site/cgpause" ] && "$python" -I -S -c "$version" 2>/dev/null; then
            echo "warning: $prefix/bin/python does not run (above: why), $python resumes; install cgpause again" >&2
            exec "$python" -I -S -c "$run" "$site" "$@"
        fi
    done
done
exit $status
