"""Two examples of every command, which its help ends with; the suite parses each."""

EXAMPLES: dict[str, tuple[str, str]] = {
    "verify": ("gradbounds verify", "gradbounds verify --out runs/mine --draws 512 --workers 2"),
    "bound": ("gradbounds bound --width 512 --depth 6", "gradbounds bound --placement pre --depth 48 --latex"),
    "predict": (
        "gradbounds predict --placement pre --width 768 --depth 12 --activation gelu --ffn-ratio 4 --mask causal",
        "gradbounds predict --like llama-3-8b --compare placement=peri",
    ),
    "first-step": (
        "gradbounds first-step --placement post pre --width 128:512:x2 --depth 6 --optimizer sgd adam muon",
        "gradbounds first-step --width 128 --depth 2 --draws 8 --out runs/first-step",
    ),
    "train": (
        "gradbounds train --placement post pre --width 256:4096:x4 --depth 2 --vocab 16 --learning-rate 1e-3",
        "gradbounds train --width 64:1024:x2 --vocab 16 --parametrization mup --steps 5 --out runs/training",
    ),
    "compare": (
        "gradbounds compare --out runs/compare",
        "gradbounds compare --placement post pre peri deepnorm --depth 12:48:x2 --activation gelu --out runs/compare",
    ),
    "relax": (
        "gradbounds relax --widths 128:512:x2 --depths 2:8:x2 --out runs/relax",
        "gradbounds relax --along ffn_ratio --values 1 2 4 --out runs/ratio",
    ),
    "claims": ("gradbounds claims", "gradbounds claims --json"),
    "explain": ("gradbounds explain T1", "gradbounds explain L3 --all"),
    "sweep": (
        "gradbounds sweep --placement post pre --width 64:1024:x2 --depth 6 --draws 256 --out runs/mine",
        "gradbounds sweep --file sweep.toml --target-sem 0.01 --workers 4 --out runs/mine",
    ),
    "check": ("gradbounds check runs/mine --layers", "gradbounds check runs/mine --strict --csv comparison.csv"),
    "figures": (
        "gradbounds figures runs/mine --out pictures",
        "gradbounds figures runs/verify --out runs/verify/again",
    ),
    "probe": (
        "gradbounds probe encoder-pre --width 128 512 --depth 2 4 8",
        "gradbounds probe mymodel:make --against encoder-post --strict --out runs/probe",
    ),
    "reproduce": (
        "gradbounds reproduce fig3 --source text.de --target text.en --width 64 --vocab 2000 --out runs/fig3",
        "gradbounds reproduce warmup --source text.de --target text.en --out runs/warmup --dry-run",
    ),
    "hessian": (
        "gradbounds hessian --source text.de --target text.en --width 32 --out runs/hessian --dry-run",
        "gradbounds hessian --source text.de --target text.en --width 32 --pairs 200 --seeds 3 --out runs/hessian",
    ),
    "hessian-stack": (
        "gradbounds hessian-stack --placement post pre --width 64 --depth 2 --out runs/curvature",
        "gradbounds hessian-stack --width 32:128:x2 --depth 2 --seeds 4 --blocks --out runs/curvature",
    ),
    "hessian-module": (
        "gradbounds hessian-module encoder-pre --width 16 --depth 2 --out runs/module",
        "gradbounds hessian-module mymodel:make --width 16 32 --depth 2 --seeds 4 --out runs/module",
    ),
    "watch": ("gradbounds watch runs/mine", "gradbounds watch runs/mine --every 5"),
    "runs": ("gradbounds runs", "gradbounds runs runs/mine --json"),
    "diff": ("gradbounds diff runs/a runs/b", "gradbounds diff runs/a runs/b --strict --json"),
    "merge": (
        "gradbounds merge runs/a runs/b --out runs/both",
        "gradbounds merge runs/a runs/b runs/c --out runs/all",
    ),
    "export": ("gradbounds export runs/mine --csv draws.csv", "gradbounds export runs --csv draws.csv"),
}
