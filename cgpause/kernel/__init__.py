"""Access to the kernel and systemd: cgroup files, PSI, inotify, processes, sockets, the journal."""
