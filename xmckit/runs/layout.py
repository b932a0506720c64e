"""The names of files and stages of a run folder."""

from __future__ import annotations

ORIGINS = "origins.json"  # where every value of the recipe came from
DEFAULT_ORIGIN = "default"  # the origin of a value that nobody wrote

LABELS_STAGE = "labels-"  # and the name of the label stage
LABELS_FACTS = "labels.json"
INDEX_STAGE = "index-"
INDEX_FACTS = "index.json"
