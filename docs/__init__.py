"""The pages, and the scripts that write the generated ones."""
