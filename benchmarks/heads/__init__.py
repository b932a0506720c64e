"""Measure heads: BSL against DFT, ranking losses, label orders and the cost of top-k losses.

`measure` and `page` write docs/heads.md; `label_orders` writes docs/label-orders.md. Runs of `measure` use
the plugin `label_noise` and `recipes/`; other studies use the recipes, too.
"""
