"""The suites: one file each, found by its name."""
