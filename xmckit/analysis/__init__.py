"""What is done with finished runs: compare them, combine them, evaluate their models on other data.

Imports runs, data and components, not the pipeline: nothing here trains.
"""
