"""Choose the rows of a group that its labels belong to: EAGLE's Algorithm 1 and the steps that improve its choice.

`steps` runs all of it, `choice` runs EAGLE alone. May import `xmckit`, `xmckit.context`, `xmckit.data.model` and
`xmckit.sparse.lanes`, and nothing of `xmckit_eagle` outside this package.
"""
