"""The test bed: a real kernel in a VM, the loads and the measurements on it. The installed package contains none of it."""
