"""The independent checker of stored verdicts: `check.check(folder)`.

It shares no code with the verifier, and imports only numpy, flint and `xmckit.store`. Each file can be read in five
minutes: `proofs` proves a status, `claims` checks all other claims, `check` reads the files and recounts.
"""
