"""`python -m tests.hostile`: run the hostile campaign, or one case of it again."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # as pytest does: `hostile` and `support`

from hostile.campaign import main

sys.exit(main(sys.argv[1:]))
