"""The only threads: Engine.step(), AsyncEngine, detokenizer."""
