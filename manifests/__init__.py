"""The contract between `pipeline` and `serve`: the published JSON files and the code both sides must share."""
