"""`python -m cgpause.daemon` runs the daemon."""

import sys

from cgpause.daemon.process import main

sys.exit(main())
