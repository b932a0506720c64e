"""The stages of a run, one file each; `xmckit.pipeline.do_stages` is their order.

Each is a subclass of `xmckit.pipeline.stage.Stage`: `identity` (what it depends on), `produce` (what it makes) and
`restore` (how that is read back). A stage imports components' protocols and checks, never a plugin.
"""
