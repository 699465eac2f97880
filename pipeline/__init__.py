"""Offline program: snapshot -> papers.parquet -> embeddings -> collection -> manifest."""
