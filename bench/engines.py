"""Time the engines beside the loop a user would write, and beside what the machine allows.

Every time is the minimum of interleaved repetitions. Each contender uses one core and both, and its faster way counts:
the loop by threads inside an operation, the engines by blocks side by side. The limit of an engine is the time that its
random numbers and its matrix products would take alone on one core, at this machine's own rates for one, all products
in float32. The loop shares the process, and with it the freed memory that the conditioned engine has glibc keep, which
makes it faster than in a process of its own. `python -m bench engines` has every case, `python -m bench engines-1024`
only d = 1024, L = 12, n = 16, on one core and by processor time, which others who keep the machine busy disturb least.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from threadpoolctl import threadpool_info
from torch import nn

from bench import depth
from bench.parts import fastest_parts
from simulate import Cell
from simulate.network.gram import without_gram
from simulate.runs.cost import block_work
from simulate.runs.sample import sample_block
from theory import Stack, predict
from theory.mean_field import gaussian

REPETITIONS = 5
CORES = (1, 2)
Clock = Callable[[], float]
# Of the one case by itself.
MIDDLE_REPETITIONS = 12

# Around d = 1024, L = 12, n = 16: over the width, the depth and the tokens.
STACKS = [
    Stack(width=width, depth=depth, tokens=tokens, vocab=512)
    for width, depth, tokens in (
        (64, 12, 16), (256, 12, 16), (1024, 12, 16), (4096, 12, 16), (1024, 3, 16), (1024, 12, 4), (1024, 12, 64),
    )
]  # fmt: skip
WIDE = [Stack(width=2**k, depth=12, tokens=16, vocab=512) for k in (12, 14, 16, 18)]
MIDDLE = Stack(width=1024, depth=12, tokens=16, vocab=512)
LARGEST = Stack(width=2**20, depth=12, tokens=16, vocab=512)


def timed(
    calls: dict[Any, Callable[[], object]], repetitions: int = REPETITIONS, clock: Clock = time.perf_counter
) -> dict[Any, list[float]]:
    """Seconds of each call in every repetition; the calls come in turn."""
    seconds: dict[Any, list[float]] = {name: [] for name in calls}
    for _ in range(repetitions):
        for name, call in calls.items():
            start = clock()
            call()
            seconds[name].append(clock() - start)
    return seconds


def fastest(
    calls: dict[Any, Callable[[], object]], repetitions: int = REPETITIONS, clock: Clock = time.perf_counter
) -> dict[Any, float]:
    """Seconds of each call, the minimum over interleaved repetitions."""
    return {name: min(each) for name, each in timed(calls, repetitions, clock).items()}


def fresh_prediction(stack: Stack) -> None:
    """A prediction whose quadratures have not been done before."""
    gaussian.softmax_overlap.cache_clear()
    gaussian.cross_entropy.cache_clear()
    predict(stack)


def torch_loop(stack: Stack, threads: int, device: str = "cpu") -> None:
    """What a user would write for one draw: a fresh `torch.nn.TransformerEncoder`, autograd, the last layer's norm."""
    torch.set_num_threads(threads)
    with torch.device(device):  # of all that is made here
        _one_draw(stack)
    torch.set_num_threads(1)


def _one_draw(stack: Stack) -> None:
    d, n = stack.width, stack.tokens
    layer = nn.TransformerEncoderLayer(
        d, 1, d, dropout=0.0, layer_norm_eps=0.0, batch_first=True, norm_first=stack.placement == "pre", bias=False
    )
    model = nn.TransformerEncoder(layer, stack.depth, enable_nested_tensor=False)
    head = nn.Linear(d, stack.vocab, bias=False)
    for name, weight in [*model.named_parameters(), *head.named_parameters()]:
        if weight.ndim == 2:
            nn.init.normal_(weight, std=d**-0.5)
        if "in_proj" in name:
            weight.data[: 2 * d] = 0.0
        if "out_proj" in name:
            nn.init.eye_(weight)
    logits = head(model(torch.randn(1, n, d)))[0]
    nn.functional.cross_entropy(logits, torch.randint(stack.vocab, (n,))).backward()
    float(model.layers[-1].linear2.weight.grad.square().sum())


def limits(repetitions: int = REPETITIONS, clock: Clock = time.perf_counter) -> dict[str, float]:
    """This machine's rates with one thread: random numbers, matrix products, copied bytes, per second."""
    numbers, square, large = torch.empty(2**16), torch.randn(1024, 1024), torch.empty(2**26)
    double = square.double()
    generator, target = torch.Generator().manual_seed(0), torch.empty(2**26)
    seconds = fastest(
        {
            "normals": lambda: [numbers.normal_(generator=generator) for _ in range(16)],
            "flops": lambda: square @ square,
            "flops, float64": lambda: double @ double,
            "bytes": lambda: target.copy_(large),
        },
        repetitions,
        clock,
    )
    done = {"normals": 16 * 2**16, "flops": 2 * 1024**3, "flops, float64": 2 * 1024**3, "bytes": 8 * 2**26}
    return {name: done[name] / seconds[name] for name in done}


def blocks(cell: Cell, cores: int) -> Callable[[], object]:
    """A call that samples one block per core, side by side."""
    # The calls set the thread count of the whole process; it is one already, so they cannot disturb each other.
    pool = ThreadPoolExecutor(cores)
    return lambda: list(pool.map(lambda block: sample_block(cell, 0, block), range(cores)))


def case(stack: Stack, rates: dict[str, float]) -> dict[str, object]:
    """Seconds per draw of loop and engines for one Stack, their ratios, and the shares of their limits."""
    cells = engine_cells(stack)
    ways = {("loop", cores): (lambda k=cores: torch_loop(stack, k)) for cores in CORES}
    ways |= {(engine, cores): blocks(cell, cores) for engine, cell in cells.items() for cores in CORES}
    seconds = fastest(ways)
    each = {"loop": {cores: seconds["loop", cores] for cores in CORES}} | {
        engine: {cores: seconds[engine, cores] / (cores * cell.draws_per_block) for cores in CORES}
        for engine, cell in cells.items()
    }
    loop = min(each["loop"].values())
    report: dict[str, object] = {
        "width": stack.width, "depth": stack.depth, "tokens": stack.tokens, "vocab": stack.vocab,
        "seconds per draw, by cores": each,
    }  # fmt: skip
    for engine, cell in cells.items():
        report[f"loop over {engine}"] = loop / min(each[engine].values())
        report[f"loop over {engine}, one core each"] = each["loop"][1] / each[engine][1]
        report[f"{engine}, limit on one core"] = limit(cell, rates, each[engine][1])
        report[f"{engine}, seconds per draw on one core, by parts"] = fastest_parts(cell, REPETITIONS)
    return report


def engine_cells(stack: Stack) -> dict[str, Cell]:
    """The cell of every engine that takes a stack."""
    engines = ("dense", "conditioned", *(() if without_gram(stack) else ("gram",)))
    return {engine: Cell(stack, engine) for engine in engines}  # type: ignore[arg-type]


def limit(cell: Cell, rates: dict[str, float], seconds: float) -> dict[str, float]:
    """The parts of an engine's limit per draw, and the share of it that was reached."""
    work, draws = block_work(cell), cell.draws_per_block
    parts = {
        "normals, seconds": work.normals / rates["normals"] / draws,
        "products, seconds": work.flops / rates["flops"] / draws,
    }
    return parts | {"share reached": sum(parts.values()) / seconds}


def wide(rates: dict[str, float]) -> dict[str, object]:
    """The conditioned engine alone from d = 2^12 to 2^18: seconds per draw and the slope of the cost."""
    cells = {str(stack.width): Cell(stack, "conditioned") for stack in WIDE}
    seconds = fastest({name: blocks(cell, 1) for name, cell in cells.items()})
    each = {name: seconds[name] / cell.draws_per_block for name, cell in cells.items()}
    first, last = str(WIDE[0].width), str(WIDE[-1].width)
    octaves = torch.log2(torch.tensor(WIDE[-1].width / WIDE[0].width)).item()
    slope = torch.log2(torch.tensor(each[last] / each[first])).item() / octaves
    shares = {name: limit(cell, rates, each[name])["share reached"] for name, cell in cells.items()}
    return {"seconds per draw": each, "share of the limit on one core": shares, "slope in d": slope}


def largest(engine: str) -> dict[str, float]:
    """One draw at d = 2^20 in a process of its own: seconds and peak GiB."""
    code = (
        "import time; from bench.engines import *\n"
        "torch.set_num_threads(1); start = time.perf_counter()\n"
        f"sample_block(Cell(LARGEST, {engine!r}), 0, 0)\n"
        "peak = next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmHWM'))\n"
        "print(time.perf_counter() - start, int(peak) / 2**20)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, peak = done.stdout.split()
    return {"seconds": float(seconds), "peak GiB": float(peak)}


def middle() -> dict[str, object]:
    """Loop, engines and limits at d = 1024, L = 12, n = 16: processor time on one core, minima and medians."""
    torch.set_num_threads(1)
    clock, cells = time.process_time, engine_cells(MIDDLE)
    rates = limits(MIDDLE_REPETITIONS, clock)
    ways: dict[str, Callable[[], object]] = {"loop": lambda: torch_loop(MIDDLE, 1)}
    ways |= {name: blocks(cell, 1) for name, cell in cells.items()}
    draws = {"loop": 1} | {name: cell.draws_per_block for name, cell in cells.items()}
    each = {
        name: [spent / draws[name] for spent in seconds]
        for name, seconds in timed(ways, MIDDLE_REPETITIONS, clock).items()
    }
    ratios = {
        name: statistics.median(loop / ours for loop, ours in zip(each["loop"], each[name], strict=True))
        for name in ("conditioned", "gram")
    }
    return {
        "width": MIDDLE.width, "depth": MIDDLE.depth, "tokens": MIDDLE.tokens, "vocab": MIDDLE.vocab,
        "NumPy's products": [
            f"{library['internal_api']} {library['version']}, {library.get('architecture', '')}"
            for library in threadpool_info() if library["user_api"] == "blas"
        ],
        "limits per second of the processor, one thread": rates,
        "processor seconds per draw, minima": {name: min(spent) for name, spent in each.items()},
        "processor seconds per draw, medians": {name: statistics.median(spent) for name, spent in each.items()},
        "loop over conditioned, of minima": min(each["loop"]) / min(each["conditioned"]),
        "loop over conditioned, median of ratios of neighbours": ratios["conditioned"],
        "loop over gram, of minima": min(each["loop"]) / min(each["gram"]),
        "loop over gram, median of ratios of neighbours": ratios["gram"],
        "limits": {name: limit(cell, rates, min(each[name])) for name, cell in cells.items()},
        **{
            f"{name}, processor seconds per draw, by parts": fastest_parts(cells[name], MIDDLE_REPETITIONS, clock)
            for name in ("conditioned", "gram")
        },
    }  # fmt: skip


def report() -> dict[str, object]:
    """Predictions in milliseconds; loop, engines and limits; the widest."""
    torch.set_num_threads(1)
    predictions = fastest(
        {
            f"{placement}, L = 1000": lambda p=placement: fresh_prediction(Stack(placement=p, depth=1000))
            for placement in ("post", "pre")
        }
    )
    rates = limits()
    return {
        "prediction, milliseconds": {name: 1000 * value for name, value in predictions.items()},
        "limits per second, one thread": rates,
        "cases": [case(stack, rates) for stack in STACKS],
        "conditioned, d = 2^12 to 2^18": wide(rates),
        **{f"{engine}, d = 2^20, one draw": largest(engine) for engine in ("conditioned", "gram")},
        "against the depth": depth.report(),
    }
