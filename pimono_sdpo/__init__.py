"""Recorded coding-agent sessions in, SDPO training rows and adapters out."""

__version__ = "0.1.0"
