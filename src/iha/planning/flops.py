"""The FLOP ledger: what each variant costs, and the steps that give every variant the same compute (design 5).

Convention (live pairs): 2 FLOPs per multiply-add; matmul parameters times tokens, plus the products of each live
(query, key) pair and head; training is 3 x forward; an embedding look-up is free, the head is a matmul also when its
matrix is the embedding's. Recomputation by activation checkpointing is not counted. Document isolation in fine-tuning
leaves fewer live pairs than counted here, in the same places for every variant. Free of torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from iha.config.schema import Budget, ModelConfig, TrainStage
from iha.planning.slices import LedgerSlice
from iha.variants.base import AttentionSpec, Geometry

#: Bytes of one cached number (bf16).
CACHE_BYTES = 2


@dataclass(frozen=True)
class ForwardFlops:
    """Forward FLOPs of the complete decoder over one sequence, by purpose."""

    projections: int
    mixing: int
    attention: int
    mlp: int
    head: int

    @property
    def total(self) -> int:
        """All of it."""
        return self.projections + self.mixing + self.attention + self.mlp + self.head


@dataclass(frozen=True)
class PricedModel:
    """A decoder with one attention variant, as the ledger sees it. `pretrain_len` in tokens fixes the windows."""

    model: ModelConfig
    attention: AttentionSpec
    vocab_size: int
    pretrain_len: int

    @property
    def geometry(self) -> Geometry:
        """The sizes the variant is priced at."""
        m = self.model
        return Geometry(m.hidden_dim, m.n_layers, m.n_heads, self.pretrain_len)

    def params(self) -> dict[str, int]:
        """Learned parameters by place; a tied matrix counts once, under `embedding`."""
        m, layers = self.model, range(self.model.n_layers)
        embedding = self.vocab_size * m.hidden_dim
        parts = {
            "embedding": embedding,
            "head": 0 if m.tie_embeddings else embedding,
            "attention": sum(self.attention.params(self.geometry, layer) for layer in layers),
            "mlp": 3 * m.hidden_dim * m.ffn_dim * m.n_layers,
            "norms": (2 * m.n_layers + 1) * m.hidden_dim,
        }
        total = sum(parts.values())
        return {**parts, "total": total, "non_embedding": total - parts["embedding"] - parts["head"]}

    def forward(self, seq_len: int) -> ForwardFlops:
        """Forward FLOPs over one sequence of `seq_len` tokens, with logits at every position."""
        m = self.model
        prices = [self.attention.forward_flops(self.geometry, layer, seq_len) for layer in range(m.n_layers)]
        return ForwardFlops(
            projections=sum(p.projections for p in prices),
            mixing=sum(p.mixing for p in prices),
            attention=sum(p.attention for p in prices),
            mlp=6 * m.hidden_dim * m.ffn_dim * m.n_layers * seq_len,
            head=2 * self.vocab_size * m.hidden_dim * seq_len,
        )

    def step_flops(self, recipe: Budget) -> int:
        """Training FLOPs of one optimiser step: 3 x forward over the global batch."""
        return 3 * self.forward(recipe.seq_len).total * recipe.global_batch

    def twelve_lds(self, seq_len: int) -> int:
        """Training FLOPs per token as 6 N + 12 L D S, N the matmul parameters: full squares, blind to masks."""
        m, parts = self.model, self.params()
        matmul = parts["attention"] + parts["mlp"] + self.vocab_size * m.hidden_dim
        return 6 * matmul + 12 * m.n_layers * m.hidden_dim * seq_len

    def asymptotic_pairs(self, seq_len: int) -> int:
        """Pairs of all layers as the paper counts them (spec 3: the 3/5 of the 4:1 schedule)."""
        return sum(self.attention.asymptotic_pairs(self.geometry, n, seq_len) for n in range(self.model.n_layers))

    def cache_bytes(self, seq_len: int) -> int:
        """KV cache of one sequence after `seq_len` tokens, in bf16."""
        layers = range(self.model.n_layers)
        return CACHE_BYTES * sum(self.attention.cache_values(self.geometry, layer, seq_len) for layer in layers)


def solve_steps(budget: int, step_flops: int) -> int:
    """Number of steps whose cost is nearest to `budget` (within half a step), at least one."""
    return max(1, (2 * budget + step_flops) // (2 * step_flops))


def cache_lengths(recipes: dict[TrainStage, Budget]) -> list[int]:
    """Half the pretraining length, doubled up to the longest length trained at, and every stage's own length."""
    own = {recipe.seq_len for recipe in recipes.values()}
    length, top = max(1, recipes["pretrain"].seq_len // 2), max(own)
    while length <= top:
        own.add(length)
        length *= 2
    return sorted(own)


def matched_steps(part: LedgerSlice, stage: TrainStage, variant: str) -> int:
    """Steps of `variant` in `stage`: the reference's, or as many as its FLOPs buy (rule `flops` in `match`)."""
    models = {v.name: _priced(part, v.attention) for v in part.variants}
    return int(_stage(models[variant], models[part.reference], part, stage)["steps"])


def _priced(part: LedgerSlice, attention: AttentionSpec) -> PricedModel:
    return PricedModel(part.model, attention, part.vocab_size, part.budgets["pretrain"].seq_len)


def ledger(part: LedgerSlice) -> dict[str, Any]:
    """Every variant's price and steps; the metadata of `flops.json` and the text of `iha flops`.

    `match`: by stage, whether its variants share FLOPs or tokens. `stage_mismatch`: by stage, FLOPs against the
    reference's as a fraction; with rule `tokens` the price of equal steps.
    """
    priced = {v.name: _priced(part, v.attention) for v in part.variants}
    reference = priced[part.reference]
    return {
        "match": part.match.model_dump(),
        "reference": part.reference,
        "variants": {name: _row(model, reference, part) for name, model in priced.items()},
    }


def _row(priced: PricedModel, reference: PricedModel, part: LedgerSlice) -> dict[str, Any]:
    length = part.budgets["pretrain"].seq_len
    forward, budget = priced.forward(length), reference.forward(length)
    stages = {stage: _stage(priced, reference, part, stage) for stage in part.budgets}
    return {
        "params": priced.params(),
        "flops_per_token": _per_token(priced, length),
        "attention_ratio": forward.attention / budget.attention,
        "asymptotic_ratio": priced.asymptotic_pairs(length) / reference.asymptotic_pairs(length),
        "forward_ratio": forward.total / budget.total,
        "cache_bytes": {str(n): priced.cache_bytes(n) for n in cache_lengths(part.budgets)},
        "mismatch": stages["pretrain"]["mismatch"],
        **{key: {stage: row[key] for stage, row in stages.items()} for key in ("steps", "tokens", "train_flops")},
        "stage_mismatch": {stage: row["mismatch"] for stage, row in stages.items()},
    }


def _per_token(priced: PricedModel, length: int) -> dict[str, float]:
    """Forward FLOPs per token by purpose at `length`, training FLOPs per token, and the 12 L D S convention's."""
    forward = priced.forward(length)
    parts = {name: value / length for name, value in vars(forward).items()}
    total = forward.total / length
    return {**parts, "forward": total, "train": 3 * total, "train_12lds": float(priced.twelve_lds(length))}


def _stage(priced: PricedModel, reference: PricedModel, part: LedgerSlice, stage: TrainStage) -> dict[str, Any]:
    """Steps of one stage, their FLOPs, and their distance from the reference's as a fraction (+: costs more)."""
    recipe, rule = part.budgets[stage], getattr(part.match, stage)
    cost, budget = priced.step_flops(recipe), recipe.steps * reference.step_flops(recipe)
    steps = solve_steps(budget, cost) if rule == "flops" else recipe.steps
    return {
        "steps": steps,
        "tokens": steps * recipe.global_batch * recipe.seq_len,
        "train_flops": float(steps * cost),
        "mismatch": steps * cost / budget - 1,
    }
