"""Where snapshots come from: OpenReview, and lists that people already have."""
