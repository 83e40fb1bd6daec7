"""Check the subjects of commits: `python -m tools.commit_subjects`, which `make lint` calls.

A subject is `area: imperative` in at most 72 characters; the reason is in the body. The commits after the one that
added this file are checked, except merges. Without a history there is nothing to check.
"""

import re
import subprocess
import sys

LIMIT = 72
_SUBJECT = re.compile(r"[a-z][\w/.,-]*(?:[ ,]+[\w/.,-]+){0,3}: [a-z`_]\S*")


def wrong(subject: str) -> bool:
    """Return whether a subject is too long or not of the form `area: imperative`."""
    return len(subject) > LIMIT or not _SUBJECT.match(subject)


def subjects() -> list[str]:
    """Return the subjects of the commits after the one that added this file, without merges."""
    first = _git("log", "--diff-filter=A", "--format=%H", "--", "tools/commit_subjects.py").split()
    return _git("log", "--no-merges", "--format=%s", f"{first[-1]}..HEAD").splitlines() if first else []


def _git(*arguments: str) -> str:
    """Return what git prints, or nothing where there is no git or no history."""
    try:
        return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ""


if __name__ == "__main__":
    if faults := [subject for subject in subjects() if wrong(subject)]:
        sys.exit(f"Commit subjects must be `area: imperative` in at most {LIMIT} characters:\n" + "\n".join(faults))
