"""`python -m gangline` is `gangline`, also where its script is not on the PATH."""

import sys

from .cli import main

sys.exit(main())
