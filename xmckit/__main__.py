"""`python -m xmckit`"""

import os
import sys

# Python searches the working folder first after `-m`. The program must not run files that happen to lie there, except
# its own: it may be started in its source tree.
_HOME = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if not getattr(sys.flags, "safe_path", False) and sys.path[0] in ("", os.getcwd()) and os.getcwd() != _HOME:
    del sys.path[0]

from xmckit.cli import main  # noqa: E402  not before the path is safe

main()
