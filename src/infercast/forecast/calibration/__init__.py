"""What a user's own results said of a deployment: as a file, and on the deployments that it holds for."""
