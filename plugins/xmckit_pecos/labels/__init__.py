"""Trees over labels: as arrays and in files, the assignment of labels to leaves, and what a report shows of a tree.

The modules here import no other package of this plugin.
"""
