"""Numba kernels over CSR matrices. Public: `topk_csr` and `topk_dense`."""

from xmckit.sparse.topk import topk_csr, topk_dense

__all__ = ["topk_csr", "topk_dense"]
