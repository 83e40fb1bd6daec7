"""`python -m gradbounds`."""

import sys

from gradbounds.cli import main

if __name__ == "__main__":
    sys.exit(main())
