"""Measure EAGLE (Shen et al., 2020): row labels from group labels.

`measure` and `page` write docs/eagle.md; `miml`, `simulation` and `miml_page` write docs/miml.md.
"""
