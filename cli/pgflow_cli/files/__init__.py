"""Commands on files: declared workflows, and workflow code."""
