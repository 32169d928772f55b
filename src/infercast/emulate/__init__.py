"""An endpoint that behaves like the deployment: OpenAI-compatible, with the times of the simulation."""
