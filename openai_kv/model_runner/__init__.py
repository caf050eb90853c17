"""The only torch: load the model, hold the KV pool, run a step, sample."""
