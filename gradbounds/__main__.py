"""The entry point: `gradbounds` and `python -m gradbounds`."""

import sys

from gradbounds.shadowing import ShadowedError, check_own_packages


def main() -> int:
    """Run the command line; Ctrl-C while it is still loading is one line too, and so is a module that shadows ours."""
    try:
        check_own_packages()
        from gradbounds.cli import main

        return main()
    except ShadowedError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("gradbounds: interrupted.", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
