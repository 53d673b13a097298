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
import unicodedata
from collections.abc import Iterator, Mapping
from reprlib import repr as brief
from typing import Any

from fst_core.config.imported import HoverConfig
from fst_core.environments.errors import DataError
from fst_core.environments.feedback import CORRECT
from fst_core.environments.imported import Published, as_answer, asked, tagged, verdict
from fst_core.environments.published import Placed, Row, once, text_at
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


class HoverEnvironment(Published[HoverConfig]):
    """Claims of HoVer; reward 1 for all supporting titles (or their share), or for the label.

    Subscores of articles: `format`, `recall` (share of the articles named) and `precision` (share
    of the titles named that are right); of labels: `format` and `answer`.
    """

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

    def _rows(self) -> Iterator[Placed]:
        seen: dict[str, str] = {}
        for where, row in super()._rows():
            once(seen, text_at(where, row, "uid"), where, "uid")
            yield where, row

    def _problem(self, where: str, row: Row) -> Problem | None:
        hops, label = _hops(where, row), _label(where, row)
        if self.config.num_hops and hops not in self.config.num_hops:
            return None
        if self.config.labels and label not in self.config.labels:
            return None
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
            {"num_hops": hops, "hpqa_id": _question(where, row) or claim},
        )

    def _family(self, problem: Problem) -> str:
        return str(problem.metadata["hpqa_id"])


def _hops(where: str, row: Row) -> int | None:
    hops = row.get("num_hops")
    if hops is not None and type(hops) is not int:
        raise DataError(f"{where}: 'num_hops' must be a whole number, not {brief(hops)}")
    return hops


def _question(where: str, row: Row) -> str | None:
    question = row.get("hpqa_id")
    if question is not None and not isinstance(question, str):
        raise DataError(f"{where}: 'hpqa_id' must be text, not {brief(question)}")
    return question


def _label(where: str, row: Mapping[str, Any]) -> str:
    label = row.get("label")
    if type(label) is int and 0 <= label < len(LABELS):
        return LABELS[label]
    if label in LABELS:
        return str(label)
    raise DataError(
        f"{where}: the claim has no label ({brief(label)}); the official test file holds none, "
        "take the train or dev file"
    )


def _titles(where: str, row: Mapping[str, Any]) -> list[str]:
    facts = row.get("supporting_facts")
    titles = [_title(fact) for fact in facts] if isinstance(facts, list) else []
    if not titles or not all(map(plain, titles)):
        raise DataError(
            f"{where}: 'supporting_facts' must be a list of [title, sentence] pairs, each a text "
            "that is not empty and a whole number"
        )
    return list(dict.fromkeys(titles))


def _title(fact: Any) -> str:
    """The title of a [title, sentence] pair or a {key, value} object; empty if it is neither."""
    pair = [fact.get("key"), fact.get("value")] if isinstance(fact, Mapping) else fact
    is_pair = isinstance(pair, list) and list(map(type, pair)) == [str, int]
    return str(pair[0]) if is_pair else ""


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
    composed = unicodedata.normalize("NFC", title).casefold()
    return " ".join(re.findall(r"[^\W_]+", composed)) or title.strip()
