"""Rebuild what a session has seen of its files, and predict from it whether an edit succeeds."""
