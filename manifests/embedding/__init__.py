"""Embedders: one interface, one module a provider."""
