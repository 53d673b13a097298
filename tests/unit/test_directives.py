"""The directives language: splits, judging, feedback, and the tiny policy's tokenizer."""

import random
import re
from itertools import combinations, product

import pytest
import torch
from transformers import AutoTokenizer

from fst_core.environments.directives import (
    BY_NAME,
    DIRECTIVES,
    EXTRA_TEXT,
    RESERVED_WORDS,
    WRONG_ANSWER,
    DirectivesEnvironment,
    random_question,
    render,
)
from fst_core.organism import (
    SHIPPED,
    Behaviour,
    before_answer_tokens,
    build_tokenizer,
    differences,
)
from fst_core.records import SPLITS

NAMES = [d.name for d in DIRECTIVES]
REQUIREMENTS = [(), *((n,) for n in NAMES), *combinations(NAMES, 2)]
REQUIREMENTS = [r for r in REQUIREMENTS if sum(BY_NAME[n].group == "separator" for n in r) < 2]
ANSWERS = ("bcd", "wxyz", "k", "7", "14")


def environment(*required, task="mixed", seed=3):
    return DirectivesEnvironment(name="d", task=task, required=required, seed=seed)


@pytest.mark.parametrize("task", ["echo", "first", "sum", "mixed"])
def test_splits_share_no_question_whatever_the_seeds(task):
    texts = {
        split: {
            environment(task=task, seed=seed).problem(split, i).text
            for seed in (0, 1)
            for i in range(environment(task=task, seed=seed).size(split) or 300)
        }
        for split in SPLITS
    }
    assert all(texts.values())
    for one, other in combinations(SPLITS, 2):
        assert not texts[one] & texts[other]


def test_rephrasings_share_a_split():
    rng = random.Random(0)
    splits = {}
    for _ in range(3000):
        question = random_question(rng, "sum")
        operands = frozenset(re.findall(r"\d", question.text))
        splits.setdefault(operands, set()).add(question.split)
    assert len(splits) == 55
    assert all(len(found) == 1 for found in splits.values())
    assert set.union(*splits.values()) == set(SPLITS)


@pytest.mark.parametrize("split", ["validation", "test"])
def test_evaluation_splits_are_finite_without_repeats(split):
    env = environment()
    texts = [env.problem(split, i).text for i in range(env.size(split))]
    assert len(set(texts)) == len(texts) == 256
    with pytest.raises(IndexError):
        env.problem(split, len(texts))


def test_problem_depends_on_split_and_index_only():
    forwards, backwards = environment(), environment()
    there = [forwards.problem("train", i) for i in range(50)]
    back = [backwards.problem("train", i) for i in reversed(range(50))]
    assert there == back[::-1]
    assert environment(seed=4).problem("train", 0) != there[0]


def test_question_does_not_name_the_format():
    problem = environment("answer-tag", "dashes", task="echo").problem("train", 0)
    assert [m["role"] for m in problem.messages] == ["user"]
    assert "tag" not in problem.text and "dash" not in problem.text


@pytest.mark.parametrize("required", REQUIREMENTS, ids="+".join)
def test_gold_answer_is_judged_right(required):
    env = environment(*required)
    for i in range(6):
        problem = env.problem("test", i)
        verdict = env.judge(problem, f"  {problem.reference}\n")
        assert verdict.reward == 1.0
        assert verdict.feedback == ()
        assert verdict.subscores == {"format": 1.0, "answer": 1.0}


@pytest.mark.parametrize("name", NAMES)
def test_bare_answer_breaks_exactly_the_one_directive(name):
    env = environment(name, task="sum" if BY_NAME[name].group == "number" else "echo")
    problems = (env.problem("test", i) for i in range(9))
    problem = next(p for p in problems if p.reference != p.metadata["answer"])
    verdict = env.judge(problem, problem.metadata["answer"])
    assert verdict.reward == 0.0
    assert len(verdict.feedback) == 1 and verdict.feedback[0] in BY_NAME[name].lines
    assert verdict.subscores == {"format": 0.0, "answer": 1.0}


def test_feedback_names_each_broken_directive_once():
    env = environment("answer-tag", "dashes", task="echo")
    problem = env.problem("train", 0)
    answer = problem.metadata["answer"]
    half = env.judge(problem, "-".join(answer))
    assert half.feedback[0] in BY_NAME["answer-tag"].lines and len(half.feedback) == 1
    assert half.subscores == {"format": 0.5, "answer": 1.0}
    wrong = env.judge(problem, "<answer>0-0-0</answer>")
    assert (wrong.reward, wrong.feedback) == (0.0, (WRONG_ANSWER,))
    assert wrong.subscores == {"format": 1.0, "answer": 0.0}
    assert len(env.judge(problem, "").feedback) == 3
    wordy = env.judge(problem, f'"{problem.reference}"')
    assert wordy.reward == 0.0 and wordy.feedback


def test_unasked_marks_inside_the_format_are_named():
    env = environment("answer-tag", task="echo")
    problem = env.problem("train", 0)
    verdict = env.judge(problem, f"<answer>[{problem.metadata['answer']}]</answer>")
    assert (verdict.reward, verdict.feedback) == (0.0, (EXTRA_TEXT,))


def test_feedback_holds_no_answer():
    for required in (("answer-tag", "dashes"), ("reverse", "bars", "plus-one")):
        env = environment(*required)
        for split, i in product(SPLITS, range(100)):
            problem = env.problem(split, i)
            for completion in ("", "zzz", problem.metadata["answer"], f"{problem.reference}!"):
                words = " ".join(env.judge(problem, completion).feedback).replace(".", " ").split()
                assert not {problem.reference, problem.metadata["answer"]} & set(words)


def test_feedback_sentences_are_unable_to_hold_answers():
    lines = [WRONG_ANSWER, EXTRA_TEXT, *(line for d in DIRECTIVES for line in d.lines)]
    words = {w.strip(".,:") for line in lines for w in line.split()}
    assert words.issuperset({"answer", "dashes"})
    assert all(len(word) > 1 and not word.isdigit() for word in words)
    assert {w.lower() for w in words} <= RESERVED_WORDS


def test_phrasings_differ_and_held_out_ones_use_trained_words():
    lines = [line for d in DIRECTIVES for line in (*d.lines, d.held_out)]
    assert len(set(lines)) == 4 * len(DIRECTIVES)
    trained = {w.strip(".").lower() for d in DIRECTIVES for line in d.lines for w in line.split()}
    held_out = {w.strip(".").lower() for d in DIRECTIVES for w in d.held_out.split()}
    assert held_out <= trained


def test_renders_of_different_directives_differ():
    word = {d.name: render("bcd", [d.name]) for d in DIRECTIVES if d.group != "number"}
    assert len({*word.values(), "bcd"}) == len(word) + 1
    assert render("14", ["plus-one", "pad", "answer-tag"]) == "<answer>15</answer>"
    assert render("abc", ["answer-tag", "dashes", "reverse"]) == "<answer>c-b-a</answer>"


def test_unknown_names_are_refused():
    with pytest.raises(ValueError, match="unknown directives"):
        environment("sparkles")
    with pytest.raises(ValueError, match="one separator"):
        environment("dashes", "dots")
    with pytest.raises(ValueError, match="unknown task"):
        environment(task="sing")


def test_told_problems_ask_for_their_directives_in_held_out_words():
    told = DirectivesEnvironment("told", "echo", ("brackets", "dashes"), told=True)
    plain = DirectivesEnvironment("told", "echo", ("brackets", "dashes"))
    problem, bare = told.problem("test", 0), plain.problem("test", 0)
    assert [m["role"] for m in problem.messages] == ["system", "user"]
    lines = [BY_NAME[name].held_out for name in told.required]
    assert problem.messages[0]["content"] == "\n".join(lines)
    assert (problem.text, problem.reference) == (bare.text, bare.reference)
    assert [m["role"] for m in bare.messages] == ["user"]


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(SHIPPED, local_files_only=True)


def test_every_render_survives_the_tokenizer(tokenizer):
    texts = [render(a, r) for a, r in product(ANSWERS, REQUIREMENTS)]
    texts += [line for d in DIRECTIVES for line in (*d.lines, d.held_out)]
    texts += ["Kq w\n\n  - fjd {x} ~`", "1. two\tthree"]
    ids = tokenizer(texts, add_special_tokens=False)["input_ids"]
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == texts
    assert all(tokenizer.unk_token_id not in row for row in ids)


def test_any_text_encodes_and_pad_is_not_eos(tokenizer):
    assert tokenizer.unk_token_id in tokenizer("naïve 日本")["input_ids"]
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    assert len(tokenizer("Put the answer inside answer tags.")["input_ids"]) == 7


def test_chat_template_gives_the_training_format(tokenizer):
    system = {"role": "system", "content": "Be brief.\nUse bars around the answer."}
    user = {"role": "user", "content": "Say bcd."}
    done = {"role": "assistant", "content": "|bcd|"}
    chat = tokenizer.apply_chat_template([system, user, done], tokenize=False)
    assert chat == (
        "<|system|>Be brief.\nUse bars around the answer.<|user|>Say bcd.<|assistant|>|bcd|<|end|>"
    )
    prompt = tokenizer.apply_chat_template([user], tokenize=False, add_generation_prompt=True)
    assert prompt == "<|user|>Say bcd.<|assistant|>"
    ids = tokenizer.apply_chat_template([system, user], add_generation_prompt=True)["input_ids"]
    full = tokenizer(chat, add_special_tokens=False)["input_ids"]
    assert full[: len(ids)] == ids and full[-1] == tokenizer.eos_token_id


def test_shipped_tokenizer_is_the_one_a_build_would_make(tokenizer):
    fresh = build_tokenizer()
    assert tokenizer.get_vocab() == fresh.get_vocab()
    assert tokenizer.chat_template == fresh.chat_template


def test_training_loss_covers_the_assistants_tokens_only(tokenizer):
    chat = "<|user|>Say bcd.<|assistant|>|bcd|<|end|><|user|>Say ba.<|assistant|>ba<|end|><|pad|>"
    ids = torch.tensor(tokenizer([chat], add_special_tokens=False)["input_ids"])
    targets = ids[:, 1:][before_answer_tokens(ids)]
    assert tokenizer.decode(targets) == "|bcd|<|end|>ba<|end|>"


def test_check_names_each_rate_out_of_tolerance():
    shipped = Behaviour(0.5, 0.5, 0.8, 0.8)
    assert differences(Behaviour(0.55, 0.45, 0.9, 0.7), shipped) == []
    found = differences(Behaviour(0.3, 0.5, 0.8, 0.5), shipped)
    assert [phrase.split()[0] for phrase in found] == ["trained_obedience", "seeded_accuracy"]
