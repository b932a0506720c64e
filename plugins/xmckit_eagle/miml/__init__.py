"""The head `miml`: multi-instance multi-label networks that learn from bags of rows.

May import `xmckit`, `xmckit.nn`, `xmckit.sparse` and `xmckit_eagle.assign.choice`. Recipes use the head by name;
`network` holds the layers, `head` trains them.
"""
