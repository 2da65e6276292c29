"""Run the parts of a command in parallel, resume them, and write, deduplicate and publish their rows."""
