"""Ask models: any OpenAI-compatible endpoint, with journal, prices and budget."""
