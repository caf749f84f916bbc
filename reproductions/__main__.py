"""``python -m reproductions``, from the root of the repository."""

import sys

from reproductions.cli import main

if __name__ == "__main__":
    sys.exit(main())
