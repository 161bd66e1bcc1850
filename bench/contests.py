"""Benchmark rows: contestants (ours first), readers of their output, and target ratios."""
import dataclasses
import json
import pathlib
import statistics

HERE = pathlib.Path(__file__).resolve().parent
OURS = "Cleave"


@dataclasses.dataclass(frozen=True)
class Contestant:
    name: str
    command: list[str]
    needs: tuple[str, ...] = ()  # required packages or programs, with the names of machine.versions()
    threads_per_process: int = 1
    prepare: list[str] | None = None  # run once before, untimed; its last output line replaces "{model}" in the command


@dataclasses.dataclass(frozen=True)
class Target:
    """The ratio of our figure to the best baseline's (above 1: ours is better) must be at least `wanted`.

    With `figures`, which holds the baselines' figures and our target on another machine, the wanted ratio is that of our
    target to the baseline that is the best in this run. Without baselines, our figure itself must be at most `wanted`.
    """
    what: str
    metric: str
    ours: str
    baselines: tuple[str, ...]
    wanted: float
    lower_is_better: bool = False
    figures: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Row:
    section: str  # train, generate or collectives
    name: str
    contestants: list[Contestant]
    targets: list[Target]


@dataclasses.dataclass(frozen=True)
class Setting:
    """Settings of all runs."""
    cleave: str
    python: str  # with the baselines' packages
    models: pathlib.Path
    threads: int
    tp: int
    is_short: bool  # minimal work to test the bench; the numbers are meaningless

    def threads_per_rank(self) -> int:
        return max(1, self.threads // self.tp)

    def baseline(self, script: str, *words: object) -> list[str]:
        return [self.python, str(HERE / "baselines" / script), *map(str, words)]


# What only our program reports.
LIMIT_SHARES = ("share_of_limit", "prefill_share_of_limit", "decode_share_of_limit")


def _last_json(output: str) -> dict:
    lines = [line for line in output.splitlines() if line.startswith("{")]
    if not lines:
        raise ValueError("no line of JSON in its output")
    return json.loads(lines[-1])


def read_metrics(section: str, output: str) -> dict[str, float]:
    """A run's figures by name. Collectives: microseconds by size, as "4096"."""
    if section == "collectives":
        lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
        if not lines:
            raise ValueError("no line of JSON in its output")
        return {str(line["bytes"]): line["median_us"] for line in lines if line["op"] == "all-reduce"}
    result = _last_json(output)
    names = {"train": ("step_ms", "tokens_per_s", "peak_rss_bytes"),
             "generate": ("prefill_tokens_per_s", "decode_tokens_per_s")}[section]
    metrics = {name: float(result[name]) for name in names}
    if section == "train" and "share" in result:
        metrics["outside_products"] = 1 - result["share"]["matrix products"]
    if section == "generate" and "memory_gb_per_s" in result:
        metrics["sum_over_matrices"] = result["memory_gb_per_s"] / result["matrix_gb_per_s"]
    metrics |= {name: result[name] for name in LIMIT_SHARES if name in result}
    return metrics


@dataclasses.dataclass(frozen=True)
class Verdict:
    what: str
    row: str
    wanted: float
    seen: float | None  # None: ours or all baselines did not run
    against: str
    is_ratio: bool

    def is_met(self) -> bool | None:
        if self.seen is None:
            return None
        return self.seen >= self.wanted if self.is_ratio else self.seen <= self.wanted


def judge(row: Row, values: dict[str, dict[str, list[float]]]) -> list[Verdict]:
    """`values`: one number per repeat, by contestant that ran and metric. Ratios are of medians."""
    verdicts = []
    for target in row.targets:
        def median(name, metric=target.metric):
            numbers = values.get(name, {}).get(metric)
            return statistics.median(numbers) if numbers else None
        ours = median(target.ours)
        baselines = {name: median(name) for name in target.baselines if median(name) is not None}
        wanted, seen, best = target.wanted, None, ""
        if not target.baselines:
            seen = ours
        elif baselines:
            best = (min if target.lower_is_better else max)(baselines, key=baselines.get)
            if best in target.figures:
                figure, goal = target.figures[best], target.figures[OURS]
                wanted = figure / goal if target.lower_is_better else goal / figure
            if ours is not None:
                seen = baselines[best] / ours if target.lower_is_better else ours / baselines[best]
        verdicts.append(Verdict(target.what, row.name, wanted, seen, best, bool(target.baselines)))
    return verdicts
