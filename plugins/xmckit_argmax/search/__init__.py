"""The search: for each assignment a vector, or rows that no vector satisfies, in floats and without proof.

`active_set` solves small working sets of rows, `working_set` chooses their rows. The modules import numpy and numba
only.
"""
