"""`python -m cgpause.daemon` runs the daemon."""

import sys

from cgpause.daemon.loop import main

sys.exit(main())
