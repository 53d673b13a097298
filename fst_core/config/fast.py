"""How contexts evolve: the fast weights."""

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from fst_core.config.method import FastSettings, Search
from fst_core.config.model import ConfigModel

if TYPE_CHECKING:
    from fst_core.config.run import RunConfig


class RulesReflection(ConfigModel):
    """Offline search operators over feedback and rollouts; deterministic under the run's seed."""

    type: Literal["rules"] = "rules"
    example_weight: float = Field(1.0, ge=0)
    """Relative weight of the operator that adds or swaps a worked example."""
    example_styles: tuple[Literal["example", "chat"], ...] = Field(("example",), min_length=1)
    """How a worked example is written: "Example input / output" lines, or "User / Assistant" lines;
    the search draws among them."""
    lesson_weight: float = Field(2.0, ge=0)
    """Relative weight of the operator that adds a line the feedback repeats."""
    drop_weight: float = Field(0.5, ge=0)
    """Relative weight of the operator that drops or shortens a line."""
    replace_weight: float = Field(0.5, ge=0)
    """Relative weight of the operator that puts a lesson in a line's place."""
    merge_weight: float = Field(0.5, ge=0)
    """Relative weight of the operator that merges two contexts."""

    @model_validator(mode="after")
    def check_weights(self) -> Self:
        names = [name for name in type(self).model_fields if name.endswith("_weight")]
        if not any(getattr(self, name) for name in names):
            raise ValueError(
                f"nothing could be proposed with every weight 0; raise one of {', '.join(names)}"
            )
        return self


class PolicyReflection(ConfigModel):
    """The model being trained writes the new contexts."""

    type: Literal["policy"] = "policy"
    max_new_tokens: int = Field(256, ge=1)
    """Token limit of a reflection."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature of a reflection."""


class LitellmReflection(ConfigModel):
    """Any API model or OpenAI-compatible server through litellm; keys come from the environment."""

    type: Literal["litellm"] = "litellm"
    model: str
    """litellm model id, for example "openai/gpt-5-mini" or "openai/NAME" with `api_base`."""
    api_base: str | None = None
    """Address of an OpenAI-compatible server."""
    temperature: float = Field(1.0, ge=0)
    """Sampling temperature of a reflection."""
    max_tokens: int = Field(2048, ge=1)
    """Token limit of a reflection."""
    timeout_seconds: float = Field(60.0, gt=0)
    """Limit of one request (seconds)."""
    retries: int = Field(2, ge=0)
    """Further tries after a failed request."""
    concurrency: int = Field(4, ge=1)
    """Requests in flight at once."""


class HuggingFaceReflection(ConfigModel):
    """A local transformers model, apart from the policy, writes the new contexts."""

    type: Literal["huggingface"] = "huggingface"
    model: str
    """Hub id or local folder."""
    max_new_tokens: int = Field(512, ge=1)
    """Token limit of a reflection."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature of a reflection."""


ReflectionConfig = Annotated[
    RulesReflection | PolicyReflection | LitellmReflection | HuggingFaceReflection,
    Field(discriminator="type"),
]


class NoFast(FastSettings):
    """No fast part: contexts stay as they are.

    Cost: none.
    """

    joint: ClassVar[bool] = True
    type: Literal["none"] = "none"


MERGE_ANCHORS = 5
"""Anchors that gepa compares a merge with its parents on, and the fewest it merges with."""


class GepaConfig(FastSettings):
    """GEPA, reflective prompt evolution with a Pareto frontier (arXiv 2507.19457; in FST's place).

    A phase scores the population on the anchors, the first of the coming cycle's problems, under
    the current weights. A search step draws parents from the frontier, has the reflection write a
    child of each from its rollouts and feedback on a minibatch, and scores on the anchors the child
    that gained most over its parent there. The K best of the frontier are the next population.

    With `contexts.components`, a proposal rewrites one component of its parent, each in turn
    (gepa's round robin), and is judged as a whole. `merge` adds gepa's merge: a search step after
    one that accepted a child may take two contexts of the frontier with an ancestor in this phase
    and join the components each has changed; the result is accepted if it is no worse than the
    better of the two on five anchors. One that is too long, or (often) no other than a context of
    the pool, is refused without a rollout.

    Cost: at most metric_calls rollouts a phase, and a reflection for every proposal; a merge costs
    five anchors, and all of them once accepted, and no reflection.
    """

    joint: ClassVar[bool] = True
    type: Literal["gepa"] = "gepa"
    metric_calls: int = Field(256, ge=0, le=100_000_000)
    """Rollouts a fast phase may use, one a metric call; the search stops before passing it."""
    anchors: int = Field(16, ge=1)
    """Problems every accepted candidate is scored on, the first of the coming cycle's problems."""
    samples_per_anchor: int = Field(1, ge=1)
    """Rollouts averaged into one anchor score (each counts as a metric call)."""
    minibatch: int = Field(4, ge=1)
    """Problems on which a proposal is compared with its parent."""
    proposals: int = Field(4, ge=1)
    """Proposals per search step, evaluated in one generate call."""
    patience: int | None = Field(None, ge=1)
    """Search steps in a row without a better best score after which the phase ends (converged, as
    alternation wants it); absent: it goes on to the limit."""
    tie_break: float = Field(0.0, ge=0, le=0.01)
    """Weight of the verdict's subscores in the search's score, next to the reward's 1; a little of
    it lets the search tell apart contexts that earn no reward yet. 0 is plain GEPA."""
    show_solutions: bool = False
    """Reflection also sees the solutions of the TRAIN problems it reads about, as gepa's own
    default adapter shows them; the slow loop never does: say so where arms are compared."""
    reuse: int = Field(0, ge=0)
    """Reflection also reads the slow phase's rollouts of at most this many slow steps ago, paid for
    already and never a score; 0 shows it none."""
    merge: bool = Field(False, exclude_if=lambda merge: not merge)
    """Also merge contexts (gepa's `use_merge`); needs several `contexts.components`."""
    max_merges: int = Field(5, ge=1, exclude_if=lambda most: most == 5)
    """Accepted merges of a phase after which no further one falls due (gepa's
    `max_merge_invocations`, which refused merges do not count for)."""
    reflection: ReflectionConfig = RulesReflection()
    """What writes new contexts."""

    def refuse(self, run: "RunConfig") -> None:
        """See `MethodSettings`."""
        if not self.merge:
            return
        if len(run.contexts.parts) < 2:
            raise ValueError(
                "fast.merge joins components that two contexts changed, and a context here is one "
                "text; name two or more in contexts.components, or leave fast.merge out"
            )
        anchors = min(self.anchors, run.loop.cycle_steps * run.loop.problems_per_step)
        if anchors < MERGE_ANCHORS:
            raise ValueError(
                f"fast.merge compares on {MERGE_ANCHORS} anchors, and a cycle has {anchors}; raise "
                "fast.anchors, or loop.cycle_steps or loop.problems_per_step"
            )

    @property
    def reads(self) -> int:
        """See `FastSettings`."""
        return self.reuse

    @property
    def writer(self) -> ReflectionConfig:
        """See `FastSettings`."""
        return self.reflection

    def bounds(self, problems: int, run: "RunConfig") -> Search:
        """See `FastSettings`.

        A search step costs at least its parents' minibatches, calls the engine three times at most
        (parents, children, an accepted child's anchors), and only begins while its worst case fits.
        Each may be followed by one merge, of two calls.
        """
        anchors = min(self.anchors, problems) * self.samples_per_anchor
        if anchors > self.metric_calls:
            return Search()
        minibatches = self.proposals * self.minibatch
        spare = self.metric_calls - anchors - self.reserve(anchors)
        rounds = 0 if spare < 0 else spare // minibatches + 1
        rollouts = self.metric_calls if rounds else anchors
        own = isinstance(self.reflection, PolicyReflection)  # its reflections are a call as well
        calls = 1 + (3 + own + 2 * self.merge) * rounds
        return Search(rollouts, calls, rounds * self.proposals)

    def reserve(self, anchor_calls: int) -> int:
        """Rollouts of the most expensive search step, whose last are `anchor_calls`."""
        compared = 2 * self.proposals * self.minibatch
        merged = MERGE_ANCHORS * self.samples_per_anchor if self.merge else 0
        return max(compared, merged) + anchor_calls
