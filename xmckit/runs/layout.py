"""Every file and stage of a run folder, by name. No other module of the core spells these names.

runs/<recipe>/<utc>-<hash>/
  recipe.toml  resolved.toml  origins.json      the recipe as written, complete, and where each value came from
  manifest.json  events.jsonl  log.txt          status, versions, stages with time and memory; what happened when
  stages/<n>-<name>/stage.json …                one folder for each finished stage
  predictions.npz  sets.npz  metrics.json  facts.json  verdicts.json  certificates.npz      copies of stage files
  plots/  report.html
runs/.cache/<key>/                              finished stages, linked into every run that needs them
runs/.sequence                                  the number of the newest run
"""

from __future__ import annotations

from xmckit import store

# A run folder
RECIPE, RESOLVED, ORIGINS = "recipe.toml", "resolved.toml", "origins.json"
DEFAULT_ORIGIN = "default"  # the origin of a value that nobody wrote
MANIFEST, EVENTS, LOG, LOCK = store.RUN_RECORD, "events.jsonl", "log.txt", ".lock"
STAGES, SCRATCH, PLOTS, REPORT = store.STAGES, "scratch", "plots", "report.html"
CACHE, SEQUENCE = ".cache", ".sequence"  # beside the recipes' folders

# A stage: its name in the manifest is one of these, or a prefix and the name of the recipe's section.
DATA, FEATURES, SCORE, VERIFY, REPORT_STAGE = "data", "features", "score", "verify", "report"
FEATURES_PREFIX, LABELS_PREFIX, INDEX_PREFIX, PART_INDEX_PREFIX, HEAD_PREFIX = (
    "features-", "labels-", "index-", "part-index-", "head-",
)  # fmt: skip
STAGE_RECORD = store.STAGE_RECORD

# Files and folders of stages
DESCRIPTION = "description.json"
FEATURES_RECORD, TRAIN_FEATURES, TEST_FEATURES, FEATURIZER = "features.json", "X.trn.npz", "X.tst.npz", "featurizer"
LABELS_RECORD, PREPROCESSOR = "labels.json", "preprocessor"
INDEX_RECORD, INDEX = "index.json", "index"
HEAD = "head"
PREDICTIONS, SETS, METRICS, HEAD_FACTS = "predictions.npz", "sets.npz", "metrics.json", "facts.json"
DIAGNOSTICS, EXAMPLES = "insights.json", "examples.json"
VERDICTS, ASSIGNMENTS, CERTIFICATES = "verdicts.json", "assignments.npz", "certificates.npz"

# stage -> its files that a person looks for at the top of the run folder
COPIES_AT_TOP = {SCORE: (PREDICTIONS, SETS, METRICS, HEAD_FACTS), VERIFY: (VERDICTS, CERTIFICATES)}

# Folders that refer to runs
EXTENSION, ENSEMBLE = "extension.json", "ensemble.json"


def decision_file(head: str) -> str:
    """Return the name of the verify stage's file with the decision of `head`."""
    return f"decision-{head}.npz"


def candidates_file(head: str) -> str:
    """Return the name of the verify stage's file with the candidates of `head`, which is behind a shortlist."""
    return f"candidates-{head}.npz"
