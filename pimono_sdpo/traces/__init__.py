"""Recorded sessions: where they are, how they are laid out, and what happened in them."""
