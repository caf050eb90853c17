"""Load on any OpenAI-compatible server, and how long it took to answer."""
