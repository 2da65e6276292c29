"""Task suites: bugs to fix with their tests; built from a source, split, and shown to agents."""
