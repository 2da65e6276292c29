"""A chat client for OpenAI-compatible endpoints, with a journal, prices and a budget."""
