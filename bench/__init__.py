"""Benchmarks and the provider emulator; run from the repository: python -m bench.NAME."""
