"""Rebuild what a session knew of its files, and judge the next edit by it."""
