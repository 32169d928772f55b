"""A user's own results: read, replayed on the deployment they were measured on, and turned into factors."""
