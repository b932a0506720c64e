"""Linear models down a label tree: options, training by PECOS (in this process or isolated), files, and calibration.

The modules here import `labels` and `search`. Only `bridge` imports PECOS.
"""
