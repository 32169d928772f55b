"""What makes and judges the artefact: measured kernels, fitted models, and forecasts compared with measured runs."""
