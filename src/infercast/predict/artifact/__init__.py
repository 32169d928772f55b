"""The fitted models in a file: trees, features, and the manifest that says what they were fitted on."""
