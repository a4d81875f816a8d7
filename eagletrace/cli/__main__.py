"""`python -m eagletrace.cli`."""

import sys

from eagletrace.cli.main import main

sys.exit(main())
