"""Runs of the filter: over all shards, resumed, in parallel, divided, put together."""
