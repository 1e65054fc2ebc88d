"""The test bed: a VM with a real kernel, loads and measurements. It is not part of the installed package."""
