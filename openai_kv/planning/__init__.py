"""What fits: `openai-kv plan` reckons memory from a model's configuration alone."""
