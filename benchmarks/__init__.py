"""Benchmarks; none measures a run in which a crash was contained."""

import os

os.environ.setdefault("PIMONO_STRICT", "1")
