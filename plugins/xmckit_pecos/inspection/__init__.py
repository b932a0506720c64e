"""What `xmckit index show` says about the label tree of a run: facts as plain values, and facts as text.

The modules here import the rest of this plugin; only its command imports them.
"""

from xmckit_pecos.inspection.facts import TreeInspector
from xmckit_pecos.inspection.text import label_text, tree_text

__all__ = ["TreeInspector", "label_text", "tree_text"]
