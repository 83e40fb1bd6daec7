"""Examples of every command, which are printed at the end of the command's help."""

EXAMPLES: dict[str, tuple[str, ...]] = {
    "verify": ("gradbounds verify", "gradbounds verify --out runs/mine --draws 512 --workers 2"),
    "predict": (
        "gradbounds predict --placement pre --width 768 --depth 12 --activation gelu --ffn-ratio 4 --mask causal",
        "gradbounds predict --like llama-3-8b --compare placement=peri",
        "gradbounds predict --bound --width 512 --depth 6",
        "gradbounds predict --first-step --optimizer sgd adam muon --width 128 --depth 6 --compare width=512",
    ),
    "explore": (
        "gradbounds explore",
        "gradbounds explore runs/mine --port 8000",
        "gradbounds explore --out theory.html",
    ),
    "sweep": (
        "gradbounds sweep --placement post pre --width 64:1024:x2 --depth 6 --draws 256 --out runs/mine",
        "gradbounds sweep --file sweep.toml --workers 4 --out runs/mine",
        "gradbounds sweep --preset compare --placement post pre peri deepnorm --depth 12:48:x2 --out runs/compare",
        "gradbounds sweep --preset relax --out runs/relax",
    ),
    "check": (
        "gradbounds check runs/mine --layers",
        "gradbounds check runs/mine --strict --json",
        "gradbounds check runs/a --against runs/b",
    ),
    "figures": (
        "gradbounds figures runs/mine --out pictures",
        "gradbounds figures runs/verify --out runs/verify/again",
    ),
    "probe": (
        "gradbounds probe encoder-pre --width 128 512 --depth 2 4 8",
        "gradbounds probe mymodel:make --against encoder-post --strict --out runs/probe",
        "gradbounds probe mymodel:make --steps 4 --optimizer mymodel:optimizer --parametrization mup --out runs/steps",
    ),
    "claims": ("gradbounds claims", "gradbounds claims T1", "gradbounds claims L3 --all"),
    "runs": ("gradbounds runs", "gradbounds runs runs/mine --json"),
}
