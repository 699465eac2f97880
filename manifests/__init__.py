"""The contract between `pipeline` and `serve`: the published JSON files and the code that both must share."""

# Equal to pyproject.toml and server.json (a test compares them): an application is not installed and knows no metadata.
VERSION = "0.1.0"
