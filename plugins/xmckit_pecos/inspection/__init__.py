"""What `xmckit index show` says about the label tree of a run: facts as plain values, and facts as text.

The modules here import the rest of this plugin; only its command imports them.
"""
