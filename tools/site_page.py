"""The page of `explore` as a file of the site, with answers for GPT-2 and for networks around the paper's.

    python -m tools.site_page FILE

`gradbounds explore --out` has more networks, which take minutes; the site's are made while Sphinx reads the pages.
"""

import sys
from pathlib import Path

from gradbounds.explore.page import page
from gradbounds.explore.precomputed import DEPTHS, WIDTHS, answers
from simulate.runs.files import write_whole


def main() -> None:
    """Write the file that is named."""
    given = answers(models=("gpt2",), depths=DEPTHS, widths=WIDTHS[:2], choices=False)
    write_whole(Path(sys.argv[1]), page(given).encode())


if __name__ == "__main__":
    main()
