"""Programs that use pgflow as anybody would; each is run by a test."""
