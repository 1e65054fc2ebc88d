"""The test bed: a real kernel in a VM, and what runs on it. Nothing here is part of the installed package."""
