"""Work with finished runs: compare them, combine them, evaluate their models, predict.

Imports runs, data and components, not the pipeline: nothing here trains. Models are passed in.
"""
