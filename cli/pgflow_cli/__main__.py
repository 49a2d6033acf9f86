"""``python -m pgflow_cli`` is ``pgflow``."""

from pgflow_cli import main

main()
