"""Text of declared files: YAML as its originals read it, references, templates and conditions."""
