"""What runs in a step: who is admitted, who goes on, who makes way, and what comes from the tiers."""
