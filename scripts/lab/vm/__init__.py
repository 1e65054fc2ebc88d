"""The virtual machine: disk, start and contents."""
