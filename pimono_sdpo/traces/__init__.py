"""Recorded sessions: finding them, reading them, and the events in them."""
