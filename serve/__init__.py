"""Read-only program: six MCP tools over one verified index."""

# Equal to pyproject.toml's and server.json's (a test compares them); the image holds neither.
VERSION = "0.1.0"
