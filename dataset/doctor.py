"""The data check under its former path; the program is doctor.py at the root of the repository."""

import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    if not __package__:  # run by path: sys.path[0] is dataset/, not the repository
        sys.path[0] = str(Path(__file__).resolve().parent.parent)
    runpy.run_module("efficientdet.programs.doctor", run_name="__main__", alter_sys=True)
