"""Measure heads behind an index: their scores (`measure`), their growth with labels (`size`) and the search of labels.

The modules write tables of docs/shortlists.md and docs/label-search.md.
"""
