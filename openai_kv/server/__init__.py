"""The only starlette: the HTTP contract, one file per endpoint family."""
