"""Becomes a program that ends with its parent: `python leash.py PARENT_PID PROGRAM ARGS…`. A file run by path.

It is settled before anything else is imported: a parent that is killed meanwhile would leave its child behind for good.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1  # Linux: kept across exec

if __name__ == "__main__":
    parent, *argv = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(parent):  # it ended before the line above
        sys.exit(1)
    os.execv(argv[0], argv)  # noqa: S606  # no shell
