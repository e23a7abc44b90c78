"""``python -m benchmarks.evidence``."""

import sys

from benchmarks.evidence import main

sys.exit(main())
