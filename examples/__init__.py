"""Programs that use pgflow as an application would; a test runs each."""
