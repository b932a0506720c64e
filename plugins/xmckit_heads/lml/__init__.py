"""The limited multi-label (LML) layer: the head, its operator, and two CPU solvers with a torch fallback.

May import `xmckit` and `xmckit.nn`. Recipes use the head `lml`; code uses
`operator.lml` and `operator.lml_loss`.
"""
