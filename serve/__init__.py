"""Read-only program: six MCP tools over one verified index."""
