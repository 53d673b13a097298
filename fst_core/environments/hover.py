"""HoVer: claims that several Wikipedia articles together support or do not.

Reads the official release (hover_train_release_v1.1.json, hover_dev_release_v1.1.json): a list of
objects with uid, claim, supporting_facts [[title, sentence], ...], label, num_hops, hpqa_id; and
the hub's rows of the same, whose facts are {key, value} and whose labels are numbers.

Which task: the FST paper calls it multi-hop and gives the base model 2% on HoVer-hard. A label
alone is right half of the time by chance, so what is scored there is more than the label. The line
of work it stands in (GEPA, arXiv 2507.19457, after LangProBe) scores whether ALL supporting
articles of a claim were found among 21. So `task = "articles"` asks for the titles; since nothing
is retrieved here, the policy names them from what it knows. `task = "label"` is the claim
verification of the HoVer paper. Neither is known to be exactly the FST paper's.

Claims made from one HotpotQA question (hpqa_id) share articles, so they stand in the same split.
"""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from fst_core.config.imported import HoverConfig
from fst_core.environments.errors import DataError
from fst_core.environments.feedback import CORRECT
from fst_core.environments.imported import Held, as_answer, asked, by_split, tagged, verdict
from fst_core.environments.published import Row, rows_of, text_at
from fst_core.environments.reading import Reading
from fst_core.records import Problem, Verdict

LABELS = ("NOT_SUPPORTED", "SUPPORTED")
"""In the order of the hub's numbers."""
BULLET = re.compile(r"^\s*(?:[-*•]|\d{1,2}[.)])\s+")
ARTICLES_WANTED = (
    "Which Wikipedia articles hold the facts that together decide whether this claim is true? "
    "Name every one of them by its title, one title a line, {most} at most."
)
LABEL_WANTED = "Do the facts support this claim? Answer SUPPORTED or NOT_SUPPORTED."
ONE_A_LINE = "The answer must be the titles of all articles that are needed, one a line."
ONE_LABEL = "The answer must be SUPPORTED or NOT_SUPPORTED and nothing else."


class HoverEnvironment(Held):
    """Claims of HoVer; reward 1 for all supporting titles (or their share), or for the label.

    Subscores of articles: `format`, `recall` (share of the articles named) and `precision` (share
    of the titles named that are right); of labels: `format` and `answer`.
    """

    def __init__(self, config: HoverConfig, load: bool = True) -> None:
        """Read all claims; `load=False` makes an environment that only judges.

        Raises:
            DataError: naming file and row, for a row outside the layout or an empty split.
        """
        self.config = config
        source = config.path or config.hub or ""
        problems = by_split(config, self._read(), source, _family) if load else {}
        super().__init__(config.name, problems)

    def judge(self, problem: Problem, completion: str) -> Verdict:
        """How many of the supporting articles were named, or whether the label is right.

        No feedback holds a title that the completion does not, nor the right label.
        """
        reading = tagged(self.config, completion)
        if self.config.task == "label":
            return self._judge_label(problem, reading)
        if reading.answer is None:
            feedback = (*reading.feedback, ONE_A_LINE)
            return Verdict(0.0, feedback, {"format": 0.0, "recall": 0.0, "precision": 0.0})
        return self._judge_titles(problem, titles_in(reading.answer))

    def solution(self, problem: Problem) -> str:
        """The titles, or the label, in the tag."""
        wanted = problem.reference
        if self.config.task == "articles":
            wanted = "\n".join(json.loads(wanted))
        return as_answer(self.config, wanted)

    def _judge_titles(self, problem: Problem, named: list[str]) -> Verdict:
        wanted = {plain(title) for title in json.loads(problem.reference)}
        right = [title for title in named if plain(title) in wanted]
        recall = len({plain(title) for title in right}) / len(wanted)
        scores = {"format": 1.0, "recall": recall, "precision": len(right) / max(1, len(named))}
        if len(named) > self.config.most_titles:
            many = f"The answer names {len(named)} titles; {self.config.most_titles} are the limit."
            return Verdict(0.0, (many, ONE_A_LINE), scores)
        if recall == 1:
            return Verdict(1.0, (CORRECT,), scores)
        told = [f"{round(recall * len(wanted))} of the {len(wanted)} articles are named."]
        if right:
            told.append(f"Right: {'; '.join(right)}.")
        wrong = [title for title in named if plain(title) not in wanted]
        if wrong:
            told.append(f"Not among them: {'; '.join(wrong)}.")
        reward = recall if self.config.partial_credit else 0.0
        return Verdict(reward, (*told, ONE_A_LINE), scores)

    def _judge_label(self, problem: Problem, reading: Reading) -> Verdict:
        label = re.sub(r"[\s_-]+", "_", (reading.answer or "").strip().strip(".*").upper())
        wrong = "The label is wrong." if label in LABELS else "The answer is neither label."
        return verdict(reading, label == problem.reference, [wrong], ONE_LABEL)

    def _read(self) -> Iterator[Problem]:
        config = self.config
        for where, row in rows_of(config):
            hops, label = row.get("num_hops"), _label(where, row)
            if config.num_hops and hops not in config.num_hops:
                continue
            if config.labels and label not in config.labels:
                continue
            yield self._problem(where, row, label)

    def _problem(self, where: str, row: Row, label: str) -> Problem:
        claim = text_at(where, row, "claim")
        if self.config.task == "label":
            wanted, reference = LABEL_WANTED, label
        else:
            wanted = ARTICLES_WANTED.format(most=self.config.most_titles)
            reference = json.dumps(_titles(where, row), ensure_ascii=False)
        return Problem(
            text_at(where, row, "uid"),
            self.config.name,
            ({"role": "user", "content": asked(self.config, f"Claim: {claim}", wanted)},),
            reference,
            {"num_hops": row.get("num_hops"), "hpqa_id": row.get("hpqa_id") or claim},
        )


def _family(problem: Problem) -> str:
    return str(problem.metadata["hpqa_id"])


def _label(where: str, row: Mapping[str, Any]) -> str:
    label = row.get("label")
    if isinstance(label, int) and 0 <= label < len(LABELS):
        return LABELS[label]
    if label in LABELS:
        return str(label)
    raise DataError(
        f"{where}: the claim has no label ({label!r}); the official test file holds none, take the "
        "train or dev file"
    )


def _titles(where: str, row: Mapping[str, Any]) -> list[str]:
    facts = row.get("supporting_facts")
    pairs = facts if isinstance(facts, list) else []
    titles = [fact["key"] if isinstance(fact, Mapping) else fact[0] for fact in pairs if fact]
    if not titles or not all(isinstance(title, str) and plain(title) for title in titles):
        raise DataError(f"{where}: 'supporting_facts' must be a list of [title, sentence] pairs")
    return list(dict.fromkeys(titles))


def titles_in(answer: str) -> list[str]:
    """The titles an answer names: a JSON list, or one a line; each once."""
    try:
        value = json.loads(answer)
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, list):
        lines = [str(item) for item in value]
    else:
        lines = [BULLET.sub("", line) for line in answer.splitlines()]
    named = {plain(line): line.strip(" \t\"'*,;") for line in lines if plain(line)}
    return list(named.values())


def plain(title: str) -> str:
    """A title by its words alone: case, punctuation and spacing do not count, where it has any."""
    return " ".join(re.findall(r"[^\W_]+", title.casefold())) or title.strip()
