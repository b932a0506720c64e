"""Files on disk: written atomically, checked when they are read, never pickled; every error names the file.

May import xmckit.errors only; numpy, scipy, pydantic, safetensors, filelock and xxhash are imported where they are
used. Public are the names in `__all__`.
"""

from xmckit.store.arrays import (
    check_array,
    read_array,
    read_arrays,
    read_csr,
    read_matrix,
    read_npy,
    read_strings,
    read_tensors,
    write_arrays,
    write_csr,
    write_matrix,
    write_strings,
    write_tensors,
)
from xmckit.store.checksums import (
    Flaw,
    compare_file,
    compare_record,
    compared,
    file_checksums,
    file_flaw,
    folder_flaws,
    has_checksums,
    open_checked,
    read_record,
    seal,
    write_record,
)
from xmckit.store.damage import RUN_RECORD, STAGE_RECORD, STAGES, damaged, explain_damage
from xmckit.store.documents import canonical_sha256, check_type, read_json, read_text, reasons, write_json
from xmckit.store.files import (
    TEMPORARY,
    append_line,
    atomic_file,
    atomic_folder,
    check_new_folder,
    file_sha256,
    link_file,
    link_tree,
    locked,
    process_alive,
    remove_folder,
    remove_stale,
    temporary_beside,
    turn,
    write_text,
)
from xmckit.store.limits import check_claim, current_limits, use_limits
from xmckit.store.matrices import check_matrix, make_coo, make_csc, make_csr

__all__ = [
    "RUN_RECORD", "STAGES", "STAGE_RECORD", "TEMPORARY", "Flaw", "append_line", "atomic_file", "atomic_folder",
    "canonical_sha256", "check_array", "check_claim", "check_matrix", "check_new_folder", "check_type",
    "compare_file", "compare_record", "compared", "current_limits", "damaged", "explain_damage", "file_checksums",
    "file_flaw", "file_sha256", "folder_flaws", "has_checksums", "link_file", "link_tree", "locked", "make_coo",
    "make_csc", "make_csr", "open_checked", "process_alive", "read_array", "read_arrays", "read_csr", "read_json",
    "read_matrix", "read_npy", "read_record", "read_strings", "read_tensors", "read_text", "reasons",
    "remove_folder", "remove_stale", "seal", "temporary_beside", "turn", "use_limits", "write_arrays", "write_csr",
    "write_json", "write_matrix", "write_record", "write_strings", "write_tensors", "write_text",
]  # fmt: skip
