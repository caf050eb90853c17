"""What the prometheus exporter shows, and how."""
