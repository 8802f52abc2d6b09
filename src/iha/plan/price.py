"""Time and memory of one variant's work on the stated machine, from the ledger's FLOPs."""

from __future__ import annotations

from dataclasses import dataclass

from iha.config.schema import Budget, Config, Recipe, TrainStage
from iha.errors import ConfigError
from iha.planning.flops import PricedModel
from iha.variants.base import AttentionSpec

#: Bytes of a parameter in training: fp32 weight, gradient and two moments; in a checkpoint: without the gradient.
STATE_BYTES, SAVED_BYTES = 16, 12
#: Tokens that a batch of answers may hold (evals/generate.py; a test compares).
BATCH_TOKENS = 131_072
#: Process memory of torch on CPU before any model.
PROCESS_BYTES = 4e8


def itemsize(vocab_size: int) -> int:
    """Bytes of a stored token id."""
    return 2 if vocab_size <= 65_536 else 4


@dataclass(frozen=True)
class Machine:
    """One variant on the machine of the config."""

    config: Config
    attention: AttentionSpec

    @property
    def model(self) -> PricedModel:
        """The decoder as the ledger sees it."""
        c = self.config
        return PricedModel(c.model, self.attention, c.tokenizer.vocab_size, c.pretrain.seq_len)

    def recipe(self, stage: TrainStage) -> Recipe:
        """The recipe of a stage."""
        found: Recipe = getattr(self.config, stage)
        return found

    def gpus(self, stage: TrainStage) -> int:
        """GPUs of one training job.

        Raises:
            ConfigError: the global batch does not divide over them, which the trainer would refuse.
        """
        plan, batch = self.config.plan, self.recipe(stage).global_batch
        stated: int | None = getattr(plan.gpus, stage)
        if stated is None:
            return max((n for n in range(1, plan.total_gpus + 1) if batch % n == 0), default=0)
        if stated and batch % stated:
            raise ConfigError(
                f"plan.gpus.{stage} is {stated}; allowed: a divisor of {stage}.global_batch, {batch} "
                f"(a training refuses ranks that its batch does not divide over)."
            )
        return stated

    @property
    def evaluating(self) -> int:
        """GPUs of one evaluation."""
        plan = self.config.plan
        return min(1, plan.total_gpus) if plan.gpus.evaluate is None else plan.gpus.evaluate

    def units(self, gpus: int) -> int:
        """What computes: GPUs, or the job's CPU threads."""
        return gpus or self.config.runtime.threads

    def step_flops(self, stage: TrainStage) -> int:
        """Training FLOPs of one step, in the ledger's convention."""
        r = self.recipe(stage)
        return self.model.step_flops(Budget(seq_len=r.seq_len, steps=r.steps, global_batch=r.global_batch))

    def step_seconds(self, stage: TrainStage) -> float:
        """Wall time of one optimiser step. Recomputed blocks cost a fourth pass; the head is never recomputed."""
        recipe, gpus = self.recipe(stage), self.gpus(stage)
        blocks = 4 if self.config.engine.activation_checkpointing else 3
        plan, work = self.config.plan, self.model.forward(recipe.seq_len)
        products = blocks * (work.projections + work.mixing + work.mlp) + 3 * work.head
        seconds = products / plan.matmul_efficiency + blocks * work.attention / self._attention_share()
        network = plan.network_efficiency if gpus > plan.gpus_per_node else 1.0
        return recipe.global_batch * seconds / (plan.peak_tflops * 1e12 * self.units(gpus) * network)

    def _attention_share(self) -> float:
        shares = self.config.plan.attention_efficiency
        return shares.get(self.attention.kind) or shares.get("other") or self.config.plan.matmul_efficiency

    def training_memory(self, stage: TrainStage) -> float:
        """Peak bytes of one rank, within a third: state, gathered weights, activations, loss."""
        c, m, parts = self.config, self.config.model, self.model.params()
        gpus, recipe = self.gpus(stage), self.recipe(stage)
        shards = max(1, min(gpus, c.plan.gpus_per_node))
        head = c.tokenizer.vocab_size * m.hidden_dim
        block = (parts["attention"] + parts["mlp"]) / m.n_layers
        gathered = 4 * (3 * block + 2 * head) if shards > 1 else 0
        width = 2 if c.engine.precision == "bf16" else 4
        rows = min(recipe.micro_batch, max(1, recipe.global_batch // max(1, gpus))) * recipe.seq_len
        # Per token and block: residual (fp32), norms, q, k, v, output and their inputs, three widths of the MLP.
        inside = rows * (8 * m.hidden_dim + width * (12 * m.hidden_dim + 4 * m.ffn_dim))
        kept = 4 * rows * m.hidden_dim * m.n_layers
        activations = kept + inside if c.engine.activation_checkpointing else inside * m.n_layers
        loss = 4 * head + 6 * c.engine.loss_chunk * c.tokenizer.vocab_size
        return STATE_BYTES * parts["total"] / shards + gathered + activations + loss + self._process(gpus)

    def _process(self, gpus: int) -> float:
        """Memory that is there before any model: CUDA's context, or torch in the process."""
        return 2e9 if gpus else PROCESS_BYTES

    def checkpoint_bytes(self, stage: TrainStage) -> float:
        """Most that one run holds: the kept checkpoints, the last healthy, one being written, the final weights."""
        total = self.model.params()["total"]
        return total * (SAVED_BYTES * (self.recipe(stage).keep_checkpoints + 2) + 4)

    def answer_seconds(self, questions: int, samples: int, prompt: int, length: int) -> float:
        """Time to read each question's prompt once and write `samples` answers of `length` tokens to it, in batches."""
        plan, batch = self.config.plan, self._rows(prompt + length)
        work, units = self.model.forward(prompt), self.units(self.evaluating)
        peak = plan.peak_tflops * 1e12 * units
        reading = (work.total - work.attention) / plan.matmul_efficiency + work.attention / self._attention_share()
        moved = 2 * self.model.params()["total"] + batch * self.model.cache_bytes(prompt + length // 2)
        writing = length * moved / (plan.bandwidth_gb_s * 1e9 * units * plan.decode_efficiency)
        return questions * reading / peak + -(-questions * samples // batch) * writing

    def answer_memory(self, length: int) -> float:
        """Bytes of weights and of the caches of a batch."""
        cached = self._rows(length) * self.model.cache_bytes(length)
        return 2 * self.model.params()["total"] + cached + self._process(self.evaluating)

    def _rows(self, length: int) -> int:
        """Answers of `length` tokens, prompt included, in one batch."""
        return max(1, min(self.config.evals.batch_size, BATCH_TOKENS // length))
