"""One reader per harness: its JSON objects in, events out."""
