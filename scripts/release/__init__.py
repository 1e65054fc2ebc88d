"""Builds the release: the wheel, the Debian package, the container image and the manual pages."""
