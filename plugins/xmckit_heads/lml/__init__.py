"""The limited multi-label (LML) layer: the head, its operator, and two CPU solvers with a torch fallback.

May import `xmckit`, `xmckit.nn` and `xmckit_heads.losses` (the head only). Recipes use the head `lml`; code uses
`operator.lml` and `operator.lml_loss`.
"""
