"""Feedback of single reasoning-gym families that can say more than the kind of the answer tells."""

import re
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from fst_core.environments.feedback.case import Case, Diagnose, Rule
from fst_core.environments.feedback.kinds import json_faults, number_faults, parsed, text_faults


def _codeio(case: Case) -> list[str]:
    faults = json_faults(case.answer, case.reference, case.question)
    if re.search(r"\b(True|False|None)\b", case.answer):
        faults.append("JSON writes true, false and null in lower case.")
    if "'" in case.answer and '"' not in case.answer:
        faults.append("JSON puts strings and keys in double quotes.")
    return faults


def _path_star(case: Case) -> list[str]:
    graph, _, ends = case.question.strip().rpartition("/")
    start, goal = ends.replace("=", "").split()
    edges = {tuple(e.split()) for e in graph.splitlines()[-1].split("|") if e.strip()}
    nodes = case.answer.split()
    if not all(node.isdigit() for node in nodes):
        return ["The answer holds other text than node labels and spaces."]
    faults = []
    if nodes[0] != start:
        faults.append(f"The path must start at node {start}.")
    if nodes[-1] != goal:
        faults.append(f"The path must end at node {goal}.")
    steps = pairwise(nodes)
    broken = next((s for s in steps if s not in edges and s[::-1] not in edges), None)
    if broken:
        faults.append(f"There is no edge between {broken[0]} and {broken[1]} in the graph.")
    return faults


def _integer(case: Case) -> list[str]:
    return number_faults(case.answer, case.reference.strip())


def _arithmetic(case: Case) -> list[str]:
    if "=" in case.answer:
        return ["The calculation is repeated; only its result is wanted.", *_integer(case)]
    return _integer(case)


def _letter_count(case: Case) -> list[str]:
    faults = _integer(case)
    return [*faults, "Go through the text letter by letter; capital letters count too."]


def _order_faults(got: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """Entries missing or added, and where the order of the entries first breaks."""
    missing, added = Counter(wanted) - Counter(got), Counter(got) - Counter(wanted)
    faults = [f"The entry {next(iter(missing))} of the question is missing."] if missing else []
    if added:
        faults.append(f"The entry {next(iter(added))} is not in the question.")
    if faults:
        return faults
    if list(got) == list(reversed(wanted)):
        return ["The entries are in the opposite order."]
    wrong = [i for i, (a, b) in enumerate(zip(got, wanted, strict=True)) if a != b]
    return [f"The list is not in order at position {wrong[0] + 1}."] if wrong else []


def _number_sorting(case: Case) -> list[str]:
    value = parsed(case.answer.strip())
    if not isinstance(value, list):
        return ["The answer is not a list in square brackets."]
    try:
        got = [str(float(item)) for item in value]
    except (TypeError, ValueError):
        return ["The list holds something that is not a number."]
    return _order_faults(got, [str(float(item)) for item in parsed(case.reference)])


def _word_list(case: Case) -> list[str]:
    if "," not in case.answer and "," in case.reference:
        return ["The words are not separated by commas."]
    got, wanted = ([w.strip() for w in t.split(",")] for t in (case.answer, case.reference))
    return _order_faults(got, wanted)


def _string(case: Case) -> list[str]:
    answer, reference = case.answer.strip(), case.reference.strip()
    faults = text_faults(answer, reference)
    if " " in answer and " " not in reference:
        faults.insert(0, "The answer must be a single string without spaces.")
    right = next(
        (i for i, (a, b) in enumerate(zip(answer, reference, strict=False)) if a != b),
        min(len(answer), len(reference)),
    )
    return [*faults, f"The answer goes wrong at character {right + 1}."]


def _backward(case: Case) -> list[str]:
    word = str(case.metadata.get("word", ""))
    if case.answer.strip() == word:
        return ["The word is repeated as it is, not backwards."]
    return _string(case)


def _sentence(case: Case) -> list[str]:
    return text_faults(case.answer, case.reference)


def _rules(requirement: str, diagnose: Diagnose, *families: str) -> dict[str, Rule]:
    return dict.fromkeys(families, Rule(requirement, diagnose))


FAMILIES: dict[str, Rule] = {
    **_rules(
        "The answer must be one JSON value with exactly the keys and types of the specification.",
        _codeio,
        "codeio",
    ),
    **_rules(
        "The answer must be the node labels of the path in the order asked for, with single spaces "
        "between them and nothing else.",
        _path_star,
        "path_star",
    ),
    **_rules(
        "The answer must be only the result of the calculation, as one number.",
        _arithmetic,
        "basic_arithmetic",
        "chain_sum",
        "decimal_arithmetic",
        "decimal_chain_sum",
        "gcd",
        "lcm",
        "products",
        "simple_equations",
    ),
    **_rules("The answer must be the count as one whole number.", _letter_count, "letter_counting"),
    **_rules(
        "The answer must be the count as one whole number.",
        _integer,
        "count_bits",
        "count_primes",
        "leg_counting",
        "rectangle_count",
    ),
    **_rules(
        "The answer must be only the final number, without units and without the calculation.",
        _arithmetic,
        "gsm_symbolic",
    ),
    **_rules(
        "The answer must be all the numbers of the question, in the order asked for, as a list in "
        "square brackets with each number in quotes.",
        _number_sorting,
        "number_sorting",
    ),
    **_rules(
        "The answer must be all the words of the question, in the order asked for, separated by "
        "commas.",
        _word_list,
        "word_sorting",
        "word_sequence_reversal",
    ),
    **_rules(
        "The answer must be only the resulting string.",
        _string,
        "string_manipulation",
        "string_insertion",
        "caesar_cipher",
    ),
    **_rules("The answer must be only the word spelled backwards.", _backward, "spell_backward"),
    **_rules(
        "The answer must be only the restored sentence, with the words of the question.",
        _sentence,
        "sentence_reordering",
        "letter_jumble",
    ),
}
