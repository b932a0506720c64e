"""What the verify stage and the command `xmckit verify` share: verify heads, read label sets, survey all heads.

Imports data, records, runs and components; knows no verifier by name. `verify.py` writes the verify stage's files.
"""
