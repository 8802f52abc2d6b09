"""The screenshots of docs/howto/mlflow.md, made again from a finished run: `python docs/shots.py STATE [mlflow.db]`.

Imports the journals below STATE into a store of its own (or takes the one named), starts MLflow's server on it, and
photographs it in Chromium. Needs the test helpers beside this folder.
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
import time
from io import BytesIO
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from chromium import Chromium  # noqa: E402
from mlflowlab import server, until  # noqa: E402
from PIL import Image  # noqa: E402

from iha.tracking.__main__ import import_runs  # noqa: E402
from iha.tracking.mlflow import client_for  # noqa: E402

IMAGES = ROOT / "docs" / "img"
WIDTH, HEIGHT = 1360, 760
#: Remembered by the page: no assistant opens beside it.
QUIET = """localStorage.setItem('mlflow.assistant.fab.autoOpenedOnFirstLoad_v1', 'true');
localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false')"""
#: Clicks the innermost element with a text: a fold, a switch.
CLICK = "[...document.querySelectorAll('*')].filter(e => e.textContent.trim() === {text}).at(-1)?.click()"
#: Clicks the first button of the chart with a title: the whole page for it.
ENLARGE = """(() => {{ let e = [...document.querySelectorAll('*')].filter(e => e.textContent.trim() === {text}).at(-1);
  while (e && !e.querySelector('button')) e = e.parentElement; e?.querySelector('button').click() }})()"""


def photograph(browser: Chromium, address: str, name: str, words: list[str], *steps: str, seconds: float = 5) -> None:
    """Open an address, wait until it shows `words`, do the `steps` (JavaScript), and write `name`.png."""
    browser.open(address)
    until(lambda: all(word in browser.ask("document.body.innerText") for word in words), 120)
    time.sleep(seconds)
    for step in steps:
        browser.ask(step)
        time.sleep(seconds)
    shot = Image.open(BytesIO(base64.b64decode(browser.call("Page.captureScreenshot", format="png")["data"])))
    small = shot.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    small.save(IMAGES / f"mlflow-{name}.png", optimize=True)


def main(state: Path, database: Path) -> None:
    """Write every picture."""
    uri = f"sqlite:///{database.resolve()}"
    import_runs(state, uri)
    client = client_for(uri)
    (home,) = (e.experiment_id for e in client.search_experiments() if e.name != "Default")
    found = client.search_runs([home], filter_string="tags.stage = 'summary'", order_by=["attributes.run_name"])
    (one,) = client.search_runs([home], filter_string="tags.stage = 'pretrain' and tags.variant = 'iha'")
    runs, chosen = f"/#/experiments/{home}/runs", quote("tags.stage = 'summary'")
    compared = f"runs={quote(json.dumps([run.info.run_id for run in found]))}&experiments={quote(json.dumps([home]))}"
    browser = Chromium(Path(tempfile.mkdtemp()))
    browser.look(WIDTH, dark=False)
    browser.call("Emulation.setDeviceMetricsOverride", width=WIDTH, height=HEIGHT, deviceScaleFactor=1, mobile=False)
    with server(uri) as here:
        browser.open(here)
        browser.ask(QUIET)
        until(lambda: "Model training" in browser.ask("document.body.innerText"), 120)
        browser.ask(CLICK.format(text="'Model training'"))
        photograph(browser, f"{here}{runs}?searchFilter={chosen}", "runs", ["iha/seed1", "global/seed1"])
        charts = f"{here}{runs}?searchFilter={chosen}&compareRunsMode=CHART"
        photograph(browser, charts, "curves", ["loss/pretrain"], ENLARGE.format(text="'loss/pretrain'"), seconds=12)
        folds = [CLICK.format(text=json.dumps(text)) for text in ("Visualizations", "Parameters")]
        photograph(browser, f"{here}/#/compare-runs?{compared}", "compare", ["Comparing 5 Runs"], *folds)
        photograph(browser, f"{here}{runs}/{one.info.run_id}", "run", ["git.commit"])
    browser.close()


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp())
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else folder / "mlflow.db")
