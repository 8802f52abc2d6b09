"""`iha`: inspect an experiment before and after it runs. The workflow itself is started with `snakemake`."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from iha import __version__
from iha.artifacts.text import aligned
from iha.config.load import config_schema, load_config
from iha.config.schema import Config, MatchConfig
from iha.config.yaml import dump_yaml, load_yaml
from iha.errors import ConfigError, UserError

EXAMPLES = """\
examples:
  iha config --config configs/paper.yaml      every value a run uses, defaults included
  iha flops --config configs/paper.yaml       parameters, FLOPs, matched steps and KV cache of each variant
  iha plan --config configs/paper.yaml        GPU-hours, wall time, memory, disk, energy and cost; after a run, actual
  iha doctor --profile slurm --slurm          preflight checks of a cluster, on this machine and in a job
  iha trace table1:iha:gsm8k_maj16            from a table cell to its runs, data, configuration and commit
  iha diff iha/seed1/sft global/seed1/sft     two runs side by side
  iha sample state/smoke/runs/iha/seed1/pretrain/final "def add("    text from a trained model
  iha export state/smoke/runs/iha/seed1/sft/final exported/iha       a folder that transformers loads
  iha lm-eval --model iha --model_args path=FOLDER --tasks gsm8k     lm-eval's own command line on a model
  iha theory                                  the paper's theorems, checked numerically on the layers
"""
#: Read by every command that is given neither --config nor --profile, and by `snakemake`.
DEFAULT_CONFIG = Path("configs/smoke.yaml")


def main(argv: list[str] | None = None) -> None:
    """Run one sub-command; an error of the user is one message and exit status 2."""
    args = parser().parse_args(argv)
    try:
        args.run(args)
        sys.stdout.flush()  # a closed pipe is noticed here instead of during shutdown
    except UserError as error:
        print(f"iha: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    p = argparse.ArgumentParser(
        prog="iha", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--version", action="version", version=f"iha {__version__}")
    commands = p.add_subparsers(title="commands", metavar="COMMAND", required=True)

    def add(name: str, text: str, examples: str, *, config: bool = True, as_json: bool = True) -> Any:
        title = "examples" if "\n" in examples else "example"
        lines = "".join(f"\n  {line}" for line in examples.splitlines())
        sub = commands.add_parser(
            name, help=text, description=text, epilog=f"{title}:{lines}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )  # fmt: skip
        if config:
            sub.add_argument("--config", type=Path, metavar="FILE", help=f"configuration (default: {DEFAULT_CONFIG})")
        if as_json:
            sub.add_argument("--json", action="store_true", help="print JSON")
        sub.set_defaults(run=globals()[f"_{name.replace('-', '_')}"])
        return sub

    sub = add("config", "Check a configuration and print it with all defaults.",
              "iha config --config configs/paper.yaml\niha config --schema > schema.json    for an editor")  # fmt: skip
    sub.add_argument("--schema", action="store_true", help="print the JSON schema of configurations instead")
    add("flops", "Price every variant: parameters, FLOPs, matched steps, KV cache.", "iha flops")
    add("plan", "Price a run: time, memory, disk, energy, cost; for finished jobs, predicted and actual.",
        "iha plan --config configs/paper.yaml")  # fmt: skip
    _add_doctor(add)
    _add_trace_and_diff(add)
    _add_models(add)
    sub = add("theory", "Check the paper's theorems in float64 on the attention layers.",
              "iha theory\niha theory --only filters    statements whose name begins so", config=False)  # fmt: skip
    sub.add_argument("--only", default="", metavar="NAME", help="show statements whose name begins so")
    return p


def read_config(path: Path | None) -> Config:
    """The configuration in `path`, or the default one.

    Raises:
        ConfigError: it cannot be read or is wrong.
    """
    if path is None and not DEFAULT_CONFIG.is_file():
        raise ConfigError(f"--config: {DEFAULT_CONFIG} is not here; run this in the repository, or name a file.")
    return load_config(path or DEFAULT_CONFIG)


# ---- configuration, FLOPs, plan --------------------------------------------------------------------------------------


def _config(args: argparse.Namespace) -> None:
    if args.schema:
        print(json.dumps(config_schema(), indent=2))
        return
    data = read_config(args.config).model_dump(mode="json")
    print(json.dumps(data, indent=2) if args.json else dump_yaml(data), end="\n")


def _flops(args: argparse.Namespace) -> None:
    from iha.planning.dag import ledger_slice
    from iha.planning.flops import ledger

    config = read_config(args.config)
    rows = ledger(ledger_slice(config))
    print(json.dumps(rows, indent=2) if args.json else ledger_text(rows, config.pretrain.seq_len))


def ledger_text(ledger: dict[str, Any], seq_len: int) -> str:
    """The FLOP ledger as aligned columns; FLOPs at `seq_len` tokens unless a column says otherwise."""
    longest = max(int(n) for n in next(iter(ledger["variants"].values()))["cache_bytes"])
    largest = max(row["params"]["total"] for row in ledger["variants"].values())
    unit, letter = (1e6, "M") if largest < 1e9 else (1e9, "B")
    head = ("variant", f"params {letter}", "GFLOP/token", "attention", "forward", "paper", "steps", "train FLOPs",
            "mismatch", f"KV @{longest}")  # fmt: skip
    rows = [
        (
            name,
            f"{row['params']['total'] / unit:.3f}",
            f"{row['flops_per_token']['forward'] / 1e9:.4g}",
            f"{row['attention_ratio']:.3f}",
            f"{row['forward_ratio']:.3f}",
            f"{row['asymptotic_ratio']:.3f}",
            f"{row['steps']['pretrain']:,}",
            f"{row['train_flops']['pretrain']:.3g}",
            f"{abs(row['mismatch']) * (1 if row['mismatch'] > 0 else -1):+.3%}".replace("-0.000%", "+0.000%"),
            f"{row['cache_bytes'][str(longest)] / 2**20:,.1f} MiB",
        )
        for name, row in ledger["variants"].items()
    ]
    return (
        f"{aligned([head, *rows])}\n\n"
        f"match: {MatchConfig(**ledger['match'])}; ratios to {ledger['reference']} at {seq_len} tokens: attention and "
        "forward count\nlive (query, key) pairs; paper: the paper's asymptotic count. Steps, train FLOPs, mismatch: "
        "pretraining."
    )


def _plan(args: argparse.Namespace) -> None:
    import iha.studies.price  # noqa: F401 (registers the prices of the studies)
    from iha.plan import plan_text
    from iha.planning.price import plan

    config = read_config(args.config)
    prices = plan(config)
    print(json.dumps(prices, indent=2) if args.json else plan_text(prices, config.plan.memory_gb))


# ---- doctor ----------------------------------------------------------------------------------------------------------


def _add_doctor(add: Any) -> None:
    text = "Check machine, files, data and cluster before a run; exit status 1 if a check fails."
    sub = add("doctor", text, "iha doctor\niha doctor --profile slurm --slurm    also the cluster, with a job")
    sub.add_argument("--profile", type=Path, metavar="DIR", help="Snakemake profile to check, with its config")
    sub.add_argument("--slurm", action="store_true", help="submit a job through the profile (default: slurm)")
    sub.add_argument("--offline", action="store_true", help="do not contact the hub for tokenizer, corpora, benchmarks")
    sub.add_argument("--patience", type=float, default=1800.0, metavar="S", help="longest wait for the job (1800)")


def _doctor(args: argparse.Namespace) -> None:
    from iha import doctor

    if args.slurm and args.profile is None:
        args.profile = Path("slurm")
    if args.config is None and args.profile is not None and (args.profile / "config.yaml").is_file():
        named = load_yaml(args.profile / "config.yaml").get("configfile")
        args.config = Path(named) if named else None
    doctor.run(args, read_config(args.config))


# ---- results ---------------------------------------------------------------------------------------------------------

TRACE_EXAMPLES = """\
iha trace table1:iha:gsm8k_maj16            the experiment that snakemake runs by default (configs/smoke.yaml)
iha trace table2:diff:avg_rank --config configs/paper.yaml
iha trace ruler:iha:multikey.4096           also ruler:iha:4096 and ruler:iha:vt.4096
iha trace ruler:iha:overall --json          every link with its whole configuration

The report shows the name of a number when you point at it; CSV files have it in the column `cell`."""
DIFF_EXAMPLES = """\
iha diff iha/seed1/pretrain global/seed1/pretrain
iha diff iha/seed1/reasoning.sft diff/seed1/reasoning.sft --all
iha diff results/old/runs/iha/seed1/sft.json results/new/runs/iha/seed1/sft.json --json"""


def _add_trace_and_diff(add: Any) -> None:
    sub = add("trace", "From a number of the report to its runs, manifests, data, configuration and commit.",
              TRACE_EXAMPLES)  # fmt: skip
    sub.add_argument("cell", metavar="CELL", help="TABLE:ROW:COLUMN, as the report names it")
    sub = add("diff", "Compare two runs: configuration, code, data, metrics.", DIFF_EXAMPLES)
    for name in ("first", "second"):
        sub.add_argument(name, metavar="RUN", help="VARIANT/seedN/STAGE, VARIANT/seedN/SUITE.MODEL, or a manifest")
    sub.add_argument("--all", action="store_true", help="also show what is equal")


def _trace(args: argparse.Namespace) -> None:
    from iha.report.results import Experiment
    from iha.report.trace import trace, trace_text

    result = trace(Experiment.of(args.config), args.cell)
    print(json.dumps(result.data(), indent=2) if args.json else trace_text(result))


def _diff(args: argparse.Namespace) -> None:
    from iha.report.diff import diff, diff_text, open_run
    from iha.report.results import Experiment

    experiment = Experiment.of(args.config)
    result = diff(open_run(experiment, args.first), open_run(experiment, args.second), args.all)
    print(json.dumps(result, indent=2) if args.json else diff_text(result))


# ---- models ----------------------------------------------------------------------------------------------------------


def _add_models(add: Any) -> None:
    sub = add("sample", "Print text that a trained model writes.",
              'iha sample state/smoke/runs/iha/seed1/pretrain/final "def add(a, b):"\n'
              'iha sample state/smoke/runs/iha/seed1/sft/final "What is 2 + 3?" --chat',
              config=False, as_json=False)  # fmt: skip
    sub.add_argument("model", type=Path, metavar="MODEL", help="folder `final` of a training stage, or its parent")
    sub.add_argument("prompt", metavar="PROMPT", help="text to continue, or with --chat a question")
    sub.add_argument("--chat", action="store_true", help="ask as a user of the fine-tuned model")
    sub.add_argument("--tokens", type=int, default=100, metavar="N", help="most tokens to write (100)")
    sub.add_argument("--temperature", type=float, default=0.0, metavar="T", help="0: greedy (0)")
    sub.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the sampling (0)")
    sub = add("lm-eval", "Run lm-eval's own command line with the model `iha` registered; all arguments are lm-eval's.",
              "iha lm-eval --model iha --model_args path=state/smoke/runs/iha/seed1/pretrain/final --tasks gsm8k",
              config=False, as_json=False)  # fmt: skip
    sub.add_argument("arguments", nargs=argparse.REMAINDER, metavar="ARGUMENTS", help="see `iha lm-eval -h`")
    sub.prefix_chars = "\0"  # no argument is an option of ours, `-h` included
    sub = add("export", "Export a trained model as a folder that transformers loads, code included.",
              "iha export state/smoke/runs/iha/seed1/sft/final exported/iha", config=False, as_json=False)  # fmt: skip
    sub.add_argument("model", type=Path, metavar="MODEL", help="folder `final` of a training stage")
    sub.add_argument("output", type=Path, metavar="OUT", help="folder to create")
    sub.add_argument("--tokenizer", type=Path, metavar="DIR", help="tokenizer folder (default: found above MODEL)")
    sub.add_argument("--max-length", type=int, metavar="N", help="longest input (default: 8 pretraining lengths)")


def _sample(args: argparse.Namespace) -> None:
    from iha.data.tokenizer import Tokenizer
    from iha.evals.generate import Draw, Generator, Request, Sampling
    from iha.model.files import load_model, tokenizer_of

    folder = args.model if (args.model / "model.json").is_file() else args.model / "final"
    model, tokenizer = load_model(folder), Tokenizer.load(tokenizer_of(folder))
    if args.chat:
        ids, _ = tokenizer.encode_chat([{"role": "user", "content": args.prompt}], add_generation_prompt=True)
    else:
        ids = [tokenizer.bos, *tokenizer.encode_text(args.prompt)]
    draw = Draw(Sampling(args.tokens, temperature=args.temperature, seed=args.seed))
    (result,) = Generator(model, tokenizer, batch_size=1).run([Request(tuple(ids), (draw,))])
    print(("" if args.chat else args.prompt) + result.answers[draw].text)


def _lm_eval(args: argparse.Namespace) -> None:
    from iha.evals.lm import command_line

    command_line(args.arguments)


def _export(args: argparse.Namespace) -> None:
    from iha.export import export_model

    export_model(args.model, args.output, args.tokenizer, args.max_length)
    print(args.output)


# ---- theory ----------------------------------------------------------------------------------------------------------


def _theory(args: argparse.Namespace) -> None:
    from iha.studies.theory import check

    statements = check.statements()
    names = [s.name for s in statements]
    chosen = [s for s in statements if s.name.startswith(args.only)]
    if not chosen:
        raise UserError(f"--only is {args.only!r}; allowed: the beginning of one of {', '.join(names)}")
    print(json.dumps(check.as_json(chosen), indent=2) if args.json else check.text(chosen))


if __name__ == "__main__":
    main()
