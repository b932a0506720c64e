"""Numba kernels over CSR matrices and texts.

May import xmckit.context, records and errors. Public are the names in `__all__`; `text` and `parse` serve
featurizers and readers, the other modules are internal.
"""

from xmckit.sparse.labels import cooccurrence, hashed_projection, label_centroids, random_projection
from xmckit.sparse.normalise import weigh_rows
from xmckit.sparse.shortlists import merge_shortlists
from xmckit.sparse.topk import topk_csr, topk_dense

__all__ = [
    "cooccurrence", "hashed_projection", "label_centroids", "merge_shortlists", "random_projection", "topk_csr",
    "topk_dense", "weigh_rows",
]  # fmt: skip
