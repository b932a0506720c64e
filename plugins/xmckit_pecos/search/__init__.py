"""Beam search down a tree of linear models, in compiled kernels: levels, margins, ranking, and copies of labels.

The modules here import no other package of this plugin.
"""
