"""What limits a deployment, and what would change that: causes and remedies that were tried on the same requests."""
