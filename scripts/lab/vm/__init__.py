"""The virtual machine: its disk, its start, and what goes into it."""
