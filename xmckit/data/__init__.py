"""Data sets and readers: the data model, file formats, published and generated sets, saved data, rows to predict for.

May import xmckit.sparse, params, context, store and errors. Public are the modules `model` and `saved`; import from
them directly, since this package exports no names and so imports nothing heavy.
"""
