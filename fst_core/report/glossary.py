"""The words that the page uses, folded, for a reader who knows the field and not this lab."""

from fst_core.report.markup import Markup, details, tag

WORDS = {
    "arm": "one way of training, run with several random seeds: base trains nothing, rl the "
    "weights alone, gepa evolves contexts alone, fst does both; others are those of the config.",
    "seed": "the random seed of a run, s0, s1, ...; not the seed context.",
    "context": "a system prompt. The seed context is that of the config, the best one heads the "
    "evolved population (by the fast part's own scores on train problems, never by what is "
    "reported here), none is no system prompt. An arm is judged by the best where it evolves "
    "contexts, else by the seed context.",
    "step, cycle": "a slow step is one update of the weights; a cycle is one evolution of the "
    "contexts (fast) and the slow steps after it.",
    "rollouts": "completions that were sampled and judged: slow ones for the weights, fast ones "
    "for the contexts; those of evaluations are counted apart.",
    "reward": "what the judge gives a completion, in [0, 1]. mean@k: mean over the k samples of a "
    "problem, then over problems; best@k: expected best of k samples.",
    "KL": "divergence of the policy from the base model on the policy's own completions, mean "
    "over tokens, in nats. k1: mean of log pi - log base of the sampled tokens; k3: mean of "
    "r - 1 - log r, r = base / pi (Schulman 2020); exact: summed over the vocabulary.",
    "rl's peak": "the highest value of rl's mean curve over seeds, a maximum of noisy points and "
    "so a little high.",
    "95% interval": "over seeds: Student's t on one value a seed, cut where no value can lie; over "
    "problems: bootstrap. Each takes the other's noise as it came. No spread: all values are "
    "the same, which is no certainty.",
    "anchors": "train problems on which a cycle scores its contexts.",
    "slot": "a place in the population of contexts; the best stands in slot 0.",
    "operator": "what wrote a context: the seed, or a kind of proposal of the fast method.",
    "reflections": "texts that the reflecting model or the rules wrote; one a proposal where the "
    "method does not count its own.",
}


def words() -> Markup:
    """What each word means, opened by the reader."""
    lines = (tag("p", tag("strong", word), f": {meaning}") for word, meaning in WORDS.items())
    return details("Words of this page", *lines)
