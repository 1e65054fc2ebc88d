"""Builds the release: the wheel, the Debian package, the container image, the manual pages and the completions."""
