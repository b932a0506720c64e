"""The commands `xmckit argmax` and `xmckit certificates`.

A module imports what it needs inside its commands, so that `xmckit --help` stays fast.
"""
