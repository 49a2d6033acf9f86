import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "kits"))

from isolationkit import main  # noqa: E402  its folder is known only now

sys.exit(main())
