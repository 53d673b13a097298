"""What people see of a study: MLflow's and Prefect's pages and the report, in a real browser.

Screenshots go to the folder FST_SCREENSHOTS, else to a temporary one.
"""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import pytest
from mlflow import MlflowClient
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags

from tests.e2e.lab import Lab

pytestmark = pytest.mark.timeout(900)
SMOKE = "configs/tiny/smoke.toml"
PATIENCE_MS = 90_000
"""A page that has not drawn itself by then never will, on a busy machine too."""
ARMS = ("fst", "rl")


@dataclass(frozen=True)
class Study:
    """A finished study and where the servers have it."""

    folder: Path
    experiment: str
    arms: dict[str, str]
    """Arm -> id of its MLflow run."""
    prompt: str
    best: str
    """Text of the prompt's version with the alias `best`."""
    best_version: int
    flow_runs: dict[str, str]
    """Name -> id."""


@pytest.fixture(scope="module")
def study(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Study:
    """One fst and one rl run, compared by the flow."""
    runs = tmp_path_factory.mktemp("runs")
    words = [sys.executable, "-m", "flows.compare", SMOKE, "--arms", *ARMS]
    lab.run(*words, "--runs", str(runs), "--set", "name=browser")
    client = MlflowClient(lab.urls["mlflow"])
    experiment = client.get_experiment_by_name("browser")
    assert experiment is not None
    found = client.search_runs([experiment.experiment_id], "tags.`fst.level` = 'arm'")
    prompt = next(p.name for p in client.search_prompts() if p.name.startswith("browser-fst-s0-"))
    best = client.get_prompt_version_by_alias(prompt, "best")
    with lab.client() as prefect:
        tagged = FlowRunFilter(tags=FlowRunFilterTags(all_=["browser"]))
        flow_runs = {
            run.name: str(run.id) for run in prefect.read_flow_runs(flow_run_filter=tagged)
        }
    return Study(
        runs / "browser",
        experiment.experiment_id,
        {run.info.run_name: run.info.run_id for run in found},
        prompt,
        best.template,
        int(best.version),
        flow_runs,
    )


@pytest.fixture(scope="module")
def shots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    chosen = os.environ.get("FST_SCREENSHOTS")
    folder = Path(chosen) if chosen else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def chromium(study: Study) -> Iterator[Browser]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    with sync_playwright() as playwright:
        # Inside a container, and for root, Chromium's own sandbox cannot be made.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def requests() -> list[str]:
    """Addresses that the pages of a test have asked for."""
    return []


@pytest.fixture
def context(lab: Lab, chromium: Browser, requests: list[str]) -> Iterator[BrowserContext]:
    """A new visitor, whose pages ask the lab's servers and nobody else."""
    visitor = chromium.new_context(viewport={"width": 1500, "height": 1200})
    visitor.set_default_timeout(PATIENCE_MS)
    visitor.on("request", lambda request: requests.append(request.url))
    yield visitor
    visitor.close()
    known = (*(f"{url}/" for url in lab.urls.values()), "file:", "data:", "blob:")
    assert [url for url in requests if not url.startswith(known)] == []


@pytest.fixture
def training(lab: Lab, context: BrowserContext) -> BrowserContext:
    """A visitor of MLflow who has chosen "Model training" and closed the assistant."""
    page = context.new_page()
    page.goto(lab.urls["mlflow"])
    page.get_by_text("Model training", exact=True).first.click()
    expect(page.get_by_text("Model registry", exact=True).first).to_be_visible(timeout=PATIENCE_MS)
    page.evaluate("localStorage.setItem('mlflow.assistant.panelOpen_v1', 'false')")
    page.close()
    return context


def ids(*names: str) -> str:
    """A list as MLflow's addresses have it."""
    return quote(json.dumps(names))


def shown(page: Page, text: str) -> None:
    """Wait until a text is on the page."""
    expect(page.locator("body")).to_contain_text(text, timeout=PATIENCE_MS)


def test_mlflow_compares_the_arms(
    lab: Lab, study: Study, training: BrowserContext, shots: Path
) -> None:
    page = training.new_page()
    runs, experiments = ids(*study.arms.values()), ids(study.experiment)
    page.goto(f"{lab.urls['mlflow']}/#/compare-runs?runs={runs}&experiments={experiments}")
    shown(page, "Comparing 2 Runs from 1 Experiment")
    chart = page.locator(".js-plotly-plot").first
    for label in (*ARMS, "evaluation/reward"):
        expect(chart.get_by_text(label, exact=True).first).to_be_visible(timeout=PATIENCE_MS)
    names = page.get_by_role("row").filter(has_text="Run Name:")
    for arm in ARMS:
        expect(names.get_by_text(arm, exact=True)).to_be_visible()
    page.screenshot(path=shots / "mlflow-compare.png")


def test_mlflow_draws_the_reward_of_both_arms(
    lab: Lab, study: Study, training: BrowserContext, shots: Path
) -> None:
    page = training.new_page()
    page.goto(f"{lab.urls['mlflow']}/#/experiments/{study.experiment}/runs?compareRunsMode=CHART")
    for arm in ARMS:
        shown(page, f"{arm} (evaluation/reward)")
    lines = page.locator(".js-plotly-plot .scatterlayer .trace")
    expect(lines.nth(len(ARMS) - 1)).to_be_attached(timeout=PATIENCE_MS)
    page.screenshot(path=shots / "mlflow-charts.png")


def test_mlflow_shows_the_contexts_of_a_run(
    lab: Lab, study: Study, context: BrowserContext, shots: Path
) -> None:
    page = context.new_page()
    page.goto(f"{lab.urls['mlflow']}/#/prompts/{quote(study.prompt)}")
    page.get_by_text(f"Version {study.best_version}", exact=True).first.click()
    shown(page, f"Viewing version {study.best_version}")
    shown(page, "best")
    shown(page, " ".join(study.best.split()))
    page.screenshot(path=shots / "mlflow-prompt.png")


def test_prefect_shows_the_phases_of_a_run(
    lab: Lab, study: Study, context: BrowserContext, shots: Path
) -> None:
    page = context.new_page()
    page.goto(lab.urls["prefect"])
    shown(page, "Dashboard")
    page.goto(f"{lab.urls['prefect']}/runs/flow-run/{study.flow_runs['fst-s0']}")
    shown(page, "Completed")
    shown(page, "fst-s0")
    page.get_by_text("Task Runs", exact=True).click()
    for phase in ("evaluate 0", "fast c00", "slow c00 0-2", "fast c01", "slow c01 2-4"):
        expect(page.get_by_text(f"{phase} fst-s0").first).to_be_attached()
    page.screenshot(path=shots / "prefect-tasks.png")
    page.get_by_text("Artifacts", exact=True).click()
    shown(page, "browser-fst-s0-contexts")
    shown(page, "browser-fst-s0-summary")
    page.screenshot(path=shots / "prefect-artifacts.png")


def test_the_report_needs_nothing_but_itself(
    study: Study, context: BrowserContext, requests: list[str], shots: Path
) -> None:
    page = context.new_page()
    address = (study.folder / "report.html").as_uri()
    page.goto(address)
    for text in (*ARMS, "final reward"):
        expect(page.get_by_text(text, exact=True).first).to_be_visible()
    assert page.locator("svg:visible").count() + page.locator("img:visible").count() >= 3
    page.screenshot(path=shots / "report.png")
    text = " ".join(study.best.split())
    for summary in page.locator("details", has_text=text).locator("> summary").all():
        summary.click()  # the outer ones first
    context_shown = page.get_by_text(text).locator("visible=true").first
    expect(context_shown).to_be_visible()
    context_shown.scroll_into_view_if_needed()
    page.screenshot(path=shots / "report-contexts.png")
    assert requests == [address]
