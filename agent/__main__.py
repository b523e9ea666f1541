"""`python -m gangline.agent` is `gangline agent`."""

import sys

from .commands.agent import main

sys.exit(main(sys.argv[1:]))
