"""OpenTelemetry behind the `otel` exporter; the only place that imports it, and the extra `otel` installs it."""
