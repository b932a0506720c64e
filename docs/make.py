"""Update what the documents show of the program: the numbers and the picture of README.md, and the SVG pictures.

    python docs/make.py readme      # runs the quickstart recipe: a minute
    python docs/make.py pictures

`readme` runs the quickstart recipe in a temporary folder, writes its table between the marks in README.md, and takes
the picture docs/report.png of its report with a headless Chromium (or Chrome) from the PATH. Without an argument, both
are done. `make docs` builds the pages.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def main() -> None:
    parts = {"readme": write_readme, "pictures": write_pictures}
    for name in sys.argv[1:] or list(parts):
        if name not in parts:
            raise SystemExit(f"unknown part '{name}': expected {' or '.join(parts)}")
        parts[name]()


def write_pictures() -> None:
    sys.path.insert(0, str(ROOT / "docs" / "site"))
    from pictures import write_pictures

    for file in write_pictures(ROOT / "docs"):
        print(f"wrote {file}")


def write_readme() -> None:
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit(f"the picture needs a browser: install one of {', '.join(BROWSERS)}")
    with tempfile.TemporaryDirectory() as folder:
        completed = subprocess.run(
            [sys.executable, "-m", "xmckit", "-q", "run", "quickstart"],
            check=True, capture_output=True, text=True, cwd=folder,
        )  # fmt: skip
        *table, report = completed.stdout.rstrip().splitlines()
        text = README.read_text("utf-8")
        block = "\n".join(line.rstrip() for line in [*table, "report: runs/quickstart/…/report.html"])
        start, end = text.index("-->", text.index("<!-- quickstart:")) + 3, text.index("<!-- /quickstart -->")
        README.write_text(f"{text[:start]}\n\n```text\n{block}\n```\n\n{text[end:]}", "utf-8")
        page = report.removeprefix("report: ")
        subprocess.run(
            [
                browser, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
                "--disable-background-networking", f"--user-data-dir={folder}/browser",
                "--hide-scrollbars", "--window-size=1160,1500",
                f"--screenshot={ROOT / 'docs' / 'report.png'}", f"file://{page}",
            ],
            check=True, capture_output=True,
        )  # fmt: skip
    print(block)


if __name__ == "__main__":
    main()
