"""What an output may be: JSON schemas and formats as grammars, and the masks they give. After and with llguidance."""
