"""Make the answers that ship with the page of `explore`, some minutes of one core.

python -m tools.prepared_answers
"""

import gzip
import json

from gradbounds import __version__
from gradbounds.explore.page import FILE
from gradbounds.explore.precomputed import answers
from simulate.runs.files import write_whole

if __name__ == "__main__":
    text = json.dumps({"version": __version__} | answers(), separators=(",", ":"), allow_nan=False)
    write_whole(FILE, gzip.compress(text.encode(), mtime=0))  # without a date, so that the same answers are one file
