"""The test bed: a real kernel in a VM, and loads and measurements on it. No part of the installed package."""
