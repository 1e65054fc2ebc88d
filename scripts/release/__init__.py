"""Builds what is shipped: the wheel, the Debian package, the container image and the manual pages."""
