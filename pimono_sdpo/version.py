"""The version of the package; below everything else, so that any module can write it into its output."""

__version__ = "0.1.0"
