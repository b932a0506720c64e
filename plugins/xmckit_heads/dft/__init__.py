"""The DFT layer: the head, the fast transform, and label orders with few arcs of active labels.

May import `xmckit`, `xmckit.nn` and `xmckit_heads.losses`. Recipes use the head `dft`; code uses `fourier.dft_logits`
and `ordering.label_order`.
"""
