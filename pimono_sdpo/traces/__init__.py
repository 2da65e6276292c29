"""Find and read recorded sessions, and parse them into events."""
