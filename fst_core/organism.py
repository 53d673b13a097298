"""Builds the tiny policy: a model organism of 0.4 million parameters that half-obeys directives.

It is trained from nothing on procedurally generated chats about the directives language, first
without directives, then obeying them, then obeying them only some of the time. What comes out
understands the format sentences of `fst_core.environments.directives`, follows them in about half
of its samples, and so leaves room for both loops of the lab. It proves nothing about LLMs.

    python -m fst_core.organism build --out DIR
    python -m fst_core.organism check --candidate DIR [--shipped DIR]

Left out: batching tricks, mixed precision, a data loader. Two builds on different machines differ
in their bits; `check` therefore compares behaviour.
"""

import argparse
import json
import logging
import random
import re
import string
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch.nn.functional import cross_entropy
from transformers import (
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from fst_core.environments.directives import (
    DIRECTIVES,
    FILLERS,
    GROUPS,
    QUESTIONS,
    SEED_LINE,
    Directive,
    Question,
    Task,
    judge_format,
    random_question,
    render,
)
from fst_core.records import Problem, seed_of

logger = logging.getLogger(__name__)

PAD, UNKNOWN, END = "<|pad|>", "<|unk|>", "<|end|>"
ROLES = ("system", "user", "assistant")
SPECIAL_TOKENS = (PAD, UNKNOWN, END, *(f"<|{role}|>" for role in ROLES))
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)
PIECES = r" ?[A-Za-z]+|</?answer>|[\s\S]"
"""How text is cut: a word with the space before it, an answer tag, or one character."""
EXAMPLE_LINES = "Example input: {0}\nExample output: {1}"
CONTEXT_TOKENS = 512
SHIPPED = Path(__file__).parent / "policy" / "tiny"

WORD_SHARE = 4
"""How often word transforms are drawn, against once for every other group."""
BATCH_CHATS = 32
TURNS = 3
MUON_LR, ADAM_LR = 0.02, 3e-3
WARMUP_STEPS = 30
CLIP_NORM = 1.0


# Tokenizer


def vocabulary() -> list[str]:
    """Every token: specials, printable characters, and the words of the directives language."""
    texts = [line for d in DIRECTIVES for line in (*d.lines, d.held_out, *d.marks)]
    texts += [line for lines in QUESTIONS.values() for line in lines]
    texts += [*FILLERS, EXAMPLE_LINES]
    pieces = {piece for text in texts for piece in re.findall(PIECES, text) if len(piece) > 1}
    characters = [c for c in string.printable if c not in "\x0b\x0c"]
    return [*SPECIAL_TOKENS, *characters, *sorted(pieces)]


def build_tokenizer() -> PreTrainedTokenizerBase:
    """BPE without merges: a piece is one token if it is in the vocabulary, else its characters.

    Any text encodes; a character outside printable ASCII becomes the unknown token. Decoding
    printable ASCII gives back the same string.
    """
    ids = {token: i for i, token in enumerate(vocabulary())}
    core = Tokenizer(models.BPE(vocab=ids, merges=[], unk_token=UNKNOWN, ignore_merges=True))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(PIECES), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        additional_special_tokens=[f"<|{role}|>" for role in ROLES],
        chat_template=CHAT_TEMPLATE,
        model_max_length=CONTEXT_TOKENS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


# Training chats


@dataclass(frozen=True, slots=True)
class Lesson:
    """How chats are drawn at one moment of training; all fields are probabilities."""

    directed: float
    """That a chat has directives at all."""
    ignored: float
    """That an answer leaves out a directive that was asked for."""
    added: float
    """That an answer carries a directive nobody asked for."""


def lesson(progress: float) -> Lesson:
    """The curriculum: plain chats, then clean obedience, then the half-obedience that is wanted."""
    if progress < 0.08:
        return Lesson(directed=0.0, ignored=0.0, added=0.0)
    if progress < 0.70:
        return Lesson(directed=0.92, ignored=0.05, added=0.02)
    return Lesson(directed=0.92, ignored=0.35, added=0.15)


def draw_directives(rng: random.Random) -> list[Directive]:
    """One to four directives, from different groups; word transforms, the hardest, most often."""
    shares = [WORD_SHARE if group == "word" else 1 for group in GROUPS]
    groups = rng.sample(GROUPS, rng.choice((1, 1, 2, 2, 3, 4)), counts=shares)
    return [rng.choice([d for d in DIRECTIVES if d.group == g]) for g in dict.fromkeys(groups)]


def draw_question(rng: random.Random, directives: Sequence[Directive]) -> Question:
    """A question of any task, most often one that the directives apply to."""
    groups = {d.group for d in directives}
    tasks: tuple[Task, ...] = ("echo", "echo", "echo", "sum", "first")
    if "word" in groups:
        tasks = ("echo", "echo", "echo", "echo", "first")
    elif "number" in groups:
        tasks = ("sum", "sum", "sum", "echo")
    return random_question(rng, rng.choice(tasks))


def answer_text(rng: random.Random, answer: str, asked: Sequence[Directive], now: Lesson) -> str:
    """The assistant's answer, some directives left out and at times one added."""
    kept = [d.name for d in asked if rng.random() >= now.ignored]
    if rng.random() < now.added:
        kept.append(rng.choice(DIRECTIVES).name)
    return render(answer, kept)


def draw_noise_line(rng: random.Random) -> str:
    """A line of random words outside the vocabulary, which asks for nothing."""
    words = ["".join(rng.choices(string.ascii_letters, k=rng.randint(2, 7))) for _ in range(3)]
    return " ".join(words)


def system_text(rng: random.Random, directives: Sequence[Directive]) -> str:
    """A system prompt: fillers, directive lines in any order, worked examples; perhaps empty.

    Where examples are shown, each directive line may be missing: the examples then say it.
    """
    examples = rng.choice((1, 2)) if rng.random() < 0.25 else 0
    told = [d for d in directives if not examples or rng.random() < 0.6]
    lines = [rng.choice(d.lines) for d in told]
    rng.shuffle(lines)
    if rng.random() < 0.4:
        lines.insert(0, SEED_LINE if rng.random() < 0.6 else rng.choice(FILLERS))
    if rng.random() < 0.15:
        lines.insert(rng.randint(0, len(lines)), rng.choice(FILLERS))
    if rng.random() < 0.05:
        lines.insert(rng.randint(0, len(lines)), draw_noise_line(rng))
    if rng.random() < 0.08:
        lines = [f"- {line}" for line in lines]
    for _ in range(examples):
        question = draw_question(rng, directives)
        output = render(question.answer, [d.name for d in directives])
        lines.append(EXAMPLE_LINES.format(question.text, output))
    return "\n".join(lines)


def draw_chat(rng: random.Random, now: Lesson) -> str:
    """One training chat, already in the chat format."""
    directives = draw_directives(rng) if rng.random() < now.directed else []
    system = system_text(rng, directives)
    parts = [f"<|system|>{system}"] if system else []
    for _ in range(TURNS):
        question = draw_question(rng, directives)
        answer = answer_text(rng, question.answer, directives, now)
        parts.append(f"<|user|>{question.text}<|assistant|>{answer}{END}")
    return "".join(parts)


def batches(tokenizer: PreTrainedTokenizerBase, steps: int, seed: int) -> Iterator[torch.Tensor]:
    """Yield `steps` right-padded batches of ids (chats, tokens); chats of like length meet."""
    rng = random.Random(seed_of("organism", seed))
    pool: list[list[list[int]]] = []
    for step in range(steps):
        if not pool:
            chats = [draw_chat(rng, lesson(step / steps)) for _ in range(8 * BATCH_CHATS)]
            rows = sorted(tokenizer(chats, add_special_tokens=False)["input_ids"], key=len)
            pool = [rows[i : i + BATCH_CHATS] for i in range(0, len(rows), BATCH_CHATS)]
            rng.shuffle(pool)
        batch = pool.pop()
        width = max(map(len, batch))
        yield torch.tensor([row + [tokenizer.pad_token_id] * (width - len(row)) for row in batch])


# Training


def build_model(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """A fresh Llama of about 0.4 million parameters in float32."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=CONTEXT_TOKENS,
        initializer_range=0.04,
        rope_parameters={"rope_type": "default", "rope_theta": 1e4},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = LlamaForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id, do_sample=True
    )
    return model


def build_optimizers(model: LlamaForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for embeddings and norms."""
    matrices = [p for p in model.model.layers.parameters() if p.ndim == 2]
    chosen = set(map(id, matrices))
    rest = [p for p in model.parameters() if id(p) not in chosen]
    return [
        torch.optim.Muon(matrices, lr=MUON_LR, momentum=0.95, weight_decay=0.0),
        torch.optim.AdamW(rest, lr=ADAM_LR, betas=(0.9, 0.98), weight_decay=0.0),
    ]


def lr_factor(step: int, steps: int) -> float:
    """Learning-rate multiplier: linear warm-up, flat, linear decay to zero over the second half."""
    return min(1.0, (step + 1) / WARMUP_STEPS, 2 * (1 - step / steps))


def before_answer_tokens(ids: torch.Tensor) -> torch.Tensor:
    """Which positions of (chats, tokens) predict an assistant's token: (chats, tokens - 1) bool.

    An assistant's tokens are its words and its end token.
    """
    specials = {token: i for i, token in enumerate(SPECIAL_TOKENS)}
    opened = (ids == specials["<|assistant|>"]).cumsum(1)
    closed = (ids == specials[END]).cumsum(1)
    return (opened > closed)[:, :-1]


def answer_loss(model: LlamaForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats over the assistant's tokens.

    Args:
        ids: (chats, tokens), right-padded, so that causal attention alone hides the padding.
    """
    answering = before_answer_tokens(ids)
    hidden = model.model(ids[:, :-1], use_cache=False).last_hidden_state[answering]
    return cross_entropy(model.lm_head(hidden), ids[:, 1:][answering])


def train(model: LlamaForCausalLM, data: Iterator[torch.Tensor], steps: int) -> None:
    """Train in place and log a progress line every 25 steps."""
    optimizers = build_optimizers(model)
    factor = partial(lr_factor, steps=steps)
    schedules = [torch.optim.lr_scheduler.LambdaLR(o, factor) for o in optimizers]
    start, tokens = time.monotonic(), 0
    for step, ids in enumerate(data, 1):
        loss = answer_loss(model, ids)
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        tokens += ids.numel()
        if step % 25 == 0 or step == steps:
            _log_progress(step, steps, loss.item(), tokens, time.monotonic() - start)


def _log_progress(step: int, steps: int, loss: float, tokens: int, seconds: float) -> None:
    left = f"{seconds / step * (steps - step):.0f} s left"
    rate = f"{tokens / seconds:.0f} tokens/s"
    logger.info("step %d/%d  loss %.3f  %s  %s", step, steps, loss, rate, left)


def build(out: Path, steps: int, seed: int) -> None:
    """Train a tiny policy and save model, tokenizer and chat template to `out`."""
    torch.manual_seed(seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    logger.info("%d parameters, %d tokens", model.num_parameters(), len(tokenizer))
    train(model, batches(tokenizer, steps, seed), steps)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


# Behaviour


@dataclass(frozen=True, slots=True)
class Behaviour:
    """What a policy does on fixed seeded prompts, sampled at temperature 1; rates in [0, 1]."""

    trained_obedience: float
    """Exactly right answers to one directive in a training phrasing."""
    held_out_obedience: float
    """Exactly right answers to one directive in its held-out phrasing."""
    plain_accuracy: float
    """Exactly right answers without a system prompt."""
    seeded_accuracy: float
    """Exactly right answers under the seed line, which asks for nothing."""


TOLERANCE = Behaviour(0.10, 0.12, 0.15, 0.15)
"""How far a rebuilt policy may be from the shipped one, either way."""


def sample(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[tuple[str, Problem]],
    seed: int,
    new_tokens: int = 32,
) -> list[str]:
    """Sample an answer to each (system prompt or "", problem) at temperature 1."""
    torch.manual_seed(seed)
    chats = [
        [*([{"role": "system", "content": system}] if system else []), *map(dict, problem.messages)]
        for system, problem in prompts
    ]
    texts = tokenizer.apply_chat_template(chats, tokenize=False, add_generation_prompt=True)
    inputs = tokenizer(texts, return_tensors="pt", padding=True, add_special_tokens=False)
    settings = GenerationConfig(
        do_sample=True,
        top_k=0,
        max_new_tokens=new_tokens,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.no_grad():
        ids = model.generate(
            inputs["input_ids"], attention_mask=inputs["attention_mask"], generation_config=settings
        )
    return tokenizer.batch_decode(ids[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)


def load(folder: Path) -> tuple[LlamaForCausalLM, PreTrainedTokenizerBase]:
    """Load a saved tiny policy from a local folder."""
    model = LlamaForCausalLM.from_pretrained(folder, local_files_only=True).eval()
    return model, PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)


def probe(task: Task, required: Sequence[str], rng: random.Random) -> Problem:
    """A problem whose required format is `required`."""
    question = random_question(rng, task)
    messages = ({"role": "user", "content": question.text},)
    metadata = {"answer": question.answer, "required": list(required)}
    return Problem(question.key, "probe", messages, render(question.answer, required), metadata)


def directive_prompts(
    phrasings: Callable[[Directive], Sequence[str]], each: int, rng: random.Random
) -> list[tuple[str, Problem]]:
    """`each` single-directive prompts per directive, its phrasings taking turns."""
    prompts = []
    for directive in DIRECTIVES:
        task: Task = "sum" if directive.group == "number" else "echo"
        lines = phrasings(directive)
        prompts += [
            (lines[i % len(lines)], probe(task, (directive.name,), rng)) for i in range(each)
        ]
    return prompts


def measure(folder: Path, each: int = 40) -> Behaviour:
    """Measure a saved policy on prompts fixed by a seed; `each` answers per directive."""
    model, tokenizer = load(folder)
    rng = random.Random(seed_of("organism check"))
    plain = [probe("mixed", (), rng) for _ in range(24 * each)]
    sets = (
        directive_prompts(lambda d: d.lines, each, rng),
        directive_prompts(lambda d: (d.held_out,), each, rng),
        [("", problem) for problem in plain],
        [(SEED_LINE, problem) for problem in plain],
    )
    return Behaviour(*(exact_rate(model, tokenizer, prompts) for prompts in sets))


def exact_rate(
    model: LlamaForCausalLM,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[tuple[str, Problem]],
) -> float:
    """Share of sampled answers with reward 1."""
    texts = sample(model, tokenizer, prompts, seed=0)
    rewards = [
        judge_format(problem, problem.metadata["required"], text).reward
        for (_, problem), text in zip(prompts, texts, strict=True)
    ]
    return sum(rewards) / len(rewards)


def differences(candidate: Behaviour, shipped: Behaviour) -> list[str]:
    """One phrase for each rate in which the two differ by more than TOLERANCE."""
    ours, theirs, allowed = asdict(candidate), asdict(shipped), asdict(TOLERANCE)
    return [
        f"{name} is {ours[name]:.3f}, shipped {theirs[name]:.3f}, tolerance {allowed[name]:.2f}"
        for name in ours
        if abs(ours[name] - theirs[name]) > allowed[name]
    ]


def check(candidate: Path, shipped: Path) -> None:
    """Compare the behaviour of two policies and log both.

    Raises:
        SystemExit: with one sentence, if they differ by more than TOLERANCE.
    """
    ours, theirs = measure(candidate), measure(shipped)
    rates = {"candidate": asdict(ours), "shipped": asdict(theirs)}
    logger.info("%s", json.dumps(rates, indent=2))
    found = differences(ours, theirs)
    if found:
        sys.exit(f"The candidate behaves unlike the shipped policy: {'; '.join(found)}.")


def main() -> None:
    """Command line of `python -m fst_core.organism`."""
    parser = argparse.ArgumentParser(description="Build or check the tiny policy.")
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("build", help="train from nothing and save")
    making.add_argument("--out", type=Path, required=True, help="folder to write")
    making.add_argument("--steps", type=int, default=3500, help="optimizer steps")
    making.add_argument("--seed", type=int, default=0)
    checking = commands.add_parser("check", help="compare behaviour with the shipped policy")
    checking.add_argument("--candidate", type=Path, required=True)
    checking.add_argument("--shipped", type=Path, default=SHIPPED)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of torch")
    args = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    torch.set_num_threads(args.threads)
    if args.command == "build":
        build(args.out, args.steps, args.seed)
    else:
        check(args.candidate, args.shipped)


if __name__ == "__main__":
    main()
