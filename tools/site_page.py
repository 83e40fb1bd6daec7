"""The page of `explore` as a file of the site, with the answers that ship with the package.

python -m tools.site_page FILE
"""

import sys
from pathlib import Path

from gradbounds.explore.page import page, prepared
from simulate.runs.files import write_whole

if __name__ == "__main__":
    write_whole(Path(sys.argv[1]), page(prepared(), links=True).encode())
