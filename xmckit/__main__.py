"""`python -m xmckit`"""

from xmckit.cli import main

main()
