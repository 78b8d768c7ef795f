"""`python -m opd_align.cli` is the same as the command `opd-align`."""

import sys

from opd_align.cli.main import main

sys.exit(main())
