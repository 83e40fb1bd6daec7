"""The entry point: `gradbounds` and `python -m gradbounds`."""

import sys


def main() -> int:
    """Run the command line; Ctrl-C while it is still loading is one line too."""
    try:
        from gradbounds.cli import main

        return main()
    except KeyboardInterrupt:
        print("gradbounds: interrupted.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
