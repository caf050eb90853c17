"""/v1/responses: a chat in other words. docs/responses.md."""
