"""The only starlette: app factory, protocol, endpoints, streaming."""
