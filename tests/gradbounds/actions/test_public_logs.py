"""Logs of public frameworks, written by somebody who had not read the reader, with a table of what is right."""

import math
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from gradbounds.actions.log_line import LogLine, first_record, read_log

FOLDER = Path(__file__).parents[2] / "data" / "public_logs"
TABLE = [row for name in ("logs", "more_logs") for row in tomllib.loads((FOLDER / f"{name}.toml").read_text())["log"]]
BITS = LogLine(math.log(2.0) * 15.8689, is_of_bits=True)
NAMES = (
    "grads/layers_4/up layer4/up block3/up h3/up layers/4/up 3/up blocks_2_up grads/layer2_up h_3_fc embed.bias".split()
)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["file"])
def test_logs_of_frameworks(row):
    path = FOLDER / row["file"]
    if row["answer"] == "refuse":
        with pytest.raises(ValueError, match="logged must have a loss of a training step"):
            read_log(path)
        return
    line = first_record(path)
    loss, norm, step = (None if row[key] == "none" else row[key] for key in ("loss", "grad_norm", "first_step"))
    steps = int(row["record"].split()[2]) if row["record"].startswith("mean") else 1
    assert line.loss == pytest.approx(loss, abs=1e-3 if "within 0.001" in row.get("note", "") else 1e-5)
    assert (line.norm, line.steps, line.skipped) == (norm, steps, row["skipped"])
    # The table says of one log that its step is not stated beside the loss, and that the bar above shows 0.
    assert line.step == (0 if row["file"] == "x_transformers_enwik8.txt" else step)
    if row["answer"] in ("mean", "later") or steps > 1:
        with pytest.raises(ValueError, match=rf"got step {step} first") as error:
            read_log(path)
        assert (f"a mean over {steps} steps" in str(error.value)) == (steps > 1)
    else:
        assert read_log(path) == line
        assert ("no step" in line.facts()) == (line.step is None)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"step": 0, "train_loss": 11.0, "gnorm": 2.5}\n{"step": 1, "train_loss": 9}', LogLine(11.0, 2.5, 0)),
        ('{"args": {"lr": 1}}\n{"iteration": 1, "lm loss": 1.1e1, "grad-norm": 2.5}', LogLine(11.0, 2.5, 1)),
        ("step,val_loss,loss,norm\n1,10.5,11.0,2.5\n2,9,9,9\n", LogLine(11.0, 2.5, 1)),
        ("1 11.0 2.5\n2 10.0 2.4\n", LogLine(11.0, 2.5, 1)),
        ("# a run\nstep loss norm\n1 11.0 2.5\n", LogLine(11.0, 2.5, 1)),
        ("0\t11.0\n", LogLine(11.0, None, 0)),
        (
            "[rank0]:[titan] 2025-10-15 10:37:01,390 - root - INFO - step:  1  loss: 11.0  grad_norm:  2.5  mfu: 0.5%",
            LogLine(11.0, 2.5, 1),
        ),
        (
            " iteration 1/ 100 | lm loss: 1.100000E+01 | loss scale: 1.0 | grad norm: 2.500 |",
            LogLine(11.0, 2.5, 1, apart={"loss scale": 1.0}),
        ),
        ("s:0 tel:11.2\ns:0 trl:11.0 norm:2.5 lr:1e-6\n", LogLine(11.0, 2.5, 0)),
        ("INFO | train:101 - Step 1/9 - Loss: 11.0 - GradNorm: 2.5 - Tokens/s: 99\n", LogLine(11.0, 2.5, 1)),
        ('{"step": 1, "metrics": {"trainLoss": 11.0, "gradNorm": 2.5}}\n', LogLine(11.0, 2.5, 1)),
        ("SUCCESS Step 1 | Time: 4.1s | Loss: 11.0 | Grad. Norm: 2.5 | LR: 1.0e-06\n", LogLine(11.0, 2.5, 1)),
        ("step 1 loss 11.0 param norm: 9.0 grad_norm 2.5\nweight norm: 3.0\n", LogLine(11.0, 2.5, 1)),
        ("warmup steps: 100\nmax step: 5\nloss: 11.0\nloss: 10.0\n", LogLine(11.0)),
        ("Loading: 50%| 2/4 [00:01<00:01]\nMap: 100%| 4/4 [00:01<00:00]\n{'loss': 11.0}\n", LogLine(11.0)),
        ("logging loss and norm\nstep 1: loss 11.0, norm 2.5\n", LogLine(11.0, 2.5, 1)),
        ("step,loss,grad_norm\n1,11.0,0.0\n2,11.1,inf\n3,11.2,2.5\n", LogLine(11.2, 2.5, 3, skipped=2)),
        ("step 0: aux loss: 0.3, loss: 11.0, time per step: 2\n", LogLine(11.0, None, 0, apart={"aux loss": 0.3})),
        ("step: 10 val_loss: 9.0 loss: 9.5\n", "got step 10 first in"),
        ("step: 0 val_loss: 11.0\nstep: 10 loss: 9.5\nstep: 20 loss: 9.0\n", LogLine(11.0, None, 0)),
        ("loss: 11.0 ppl: 2048\n", LogLine(11.0 * 0.6931471805599453, is_of_bits=True)),
        (
            '{"loss": "11.0", "grad_norm": "2.5", "global_step/max_steps": "1/2000"}\n',
            LogLine(11.0, 2.5, 1),
        ),  # ms-swift
        ("{'loss': '11.0', 'grad_norm': '2.5', 'global_step/max_steps': '1/2000'}\n", LogLine(11.0, 2.5, 1)),
        ("Epoch [1/10], Step [2/600], Loss: 9.5\n", "got step 2 first in"),
        ("Epoch [1/10], Loss: 9.5\n", LogLine(9.5)),  # a mean over an epoch, of no step
        ("INFO:tensorflow:loss = 11.0, step = 1 (5.3 sec)\n", LogLine(11.0, None, 1)),
        ("Step 50/100000; acc: 2.5; ppl: 14764.8; xent: 9.6; lr: 0.1\n", "got step 50 first in"),
        ("1|1|Loss: 11.0: 0%| | 1/1000 [00:01<00:02, 1.2s/it]\n", LogLine(11.0, None, 1)),  # torchtune
        ("step:1 - actor/lr:0.1 - train/loss:11.0 - train/grad_norm:2.5\n", LogLine(11.0, 2.5, 1)),  # verl
        ("import os\nloss = 0\nstep = 12\n" + "=" * 40 + "\nstep:0/9 val_loss:11.0\n", LogLine(11.0, None, 0)),
        ("[05/14/26 09:00:02] loss: 11.0\n", LogLine(11.0)),
        ("Epoch 1/5\n32/32 - 1s - loss: 9.5 - val_loss: 7.3\n", "got step 32 first in"),  # a mean over the epoch
        ("| epoch 1 | 50/ 90 batches | loss 9.5\n| epoch 1 | 75/ 90 batches | loss 9.4\n", "got step 50 first in"),
        ("step: 1  loss: 11.0  grad: 2.5  grad_norm: 3.5\n", LogLine(11.0, 3.5, 1)),
        ("step: 1  loss: 11.0  grad_norm: 79,953.5  tps: 1,243\n", LogLine(11.0, 79953.5, 1)),
        ('step,loss,grad_norm\n1,"11.0","1,220.5"\n', LogLine(11.0, 1220.5, 1)),
        ("step: 1,000 loss: 3.0\n", "got step 1000 first in"),
        ("Steps: 1%|1   | 10/1000 [00:09<10:00,  1.2s/it, loss=9.5]\n", "got step 10 first in"),
        ("step 1 loss tensor(11.0, device='cuda:0') grad_norm tensor(2.5)\n", LogLine(11.0, 2.5, 1)),
        ("Train: 1%| | 1/100 [00:10<10:00, 10.1s/it, gpt_loss=11, grad_norm=2.5]\n", LogLine(11.0, 2.5, 1)),
        ("step: 0 loss: 11.0\nstep: 1 loss: 11.01 grad_norm: 2.5\n", LogLine(11.01, 2.5, 1)),  # an evaluation first
        ("step: 0 loss: 11.0\nstep: 1 loss: 10.5 grad_norm: 2.5\n", LogLine(11.0, None, 0)),
        ("step: 1 loss: 11.0 norm: nan\nstep: 2 loss: nan norm: nan\n", "got norm nan at step 1 in"),
        # Decimal commas, and commas between thousands.
        ("step;loss;grad_norm\n1;10,97;15,3\n2;10,9;14,1\n", LogLine(10.97, 15.3, 1)),
        ("step;loss;grad_norm\n1;10,971;15,3\n", LogLine(10.971, 15.3, 1)),
        ('step;loss;grad_norm\n1;"10,97";"1.220,5"\n', LogLine(10.97, 1220.5, 1)),
        ("step;loss;grad_norm\n1;10,971;15.3\n", LogLine(10971.0, 15.3, 1)),
        ("step;loss;grad_norm\n1;10,971;15,312\n2;9,123;8,001\n", "must have one decimal sign, got '10,971' in"),
        ("step;loss;lr\n1;10,97;0.001\n", "must have one decimal sign, got '10,97' in"),
        ("1;10,97;15,3\n2;10,9;14,1\n", LogLine(10.97, 15.3, 1)),
        ("step\tloss\tgrad_norm\n1\t10,97\t15,3\n", LogLine(10.97, 15.3, 1)),
        ("step\tloss\tgrad_norm\n1\t10.97\t79,953.5\n", LogLine(10.97, 79953.5, 1)),
        ("step 1, loss 10,97, grad_norm 15,3\n", LogLine(10.97, 15.3, 1)),
        # A norm that was not computed at step 0, and a loss that is missing at step 1.
        (
            '{"step": 0, "loss": 10.97, "grad_norm": 0.0}\n{"step": 1, "loss": 10.96, "grad_norm": 2.5}\n',
            LogLine(10.96, 2.5, 1),
        ),
        (
            '{"step": 0, "loss": 10.97, "grad_norm": 0.0}\n{"step": 1, "loss": 10.5, "grad_norm": 2.5}\n',
            LogLine(10.97, None, 0),
        ),
        (
            "step 0 loss 11.0 norm 0.0 loss scale: 8.0\nstep 1 loss 11.0 norm 2.5 loss scale: 4.0\n",
            LogLine(11.0, 2.5, 1, skipped=1, apart={"loss scale": 4.0}),
        ),
        (
            '{"step": 1, "loss": null, "grad_norm": 2.5}\n{"step": 2, "loss": 10.9, "grad_norm": 2.5}\n',
            r"got step 2 first in .*, after step 1 without a loss \(missing or null\): begin",
        ),
        # Norms before and after clipping (MaxText), counts of samples (open_lm, EVA), and means of one step.
        (
            "completed step: 0, loss: 11.0, grad_norm: 1.0, raw_grad_norm: 2.5\n",
            LogLine(11.0, 2.5, 0, {}, "raw_grad_norm"),
        ),
        (
            '{"step": 0, "learning/loss": 11.0, "learning/grad_norm": 1.0, "learning/raw_grad_norm": 2.5}\n',
            LogLine(11.0, 2.5, 0, {}, "learning/raw_grad_norm"),
        ),
        ("Train Epoch: 0 [  8/10000 (0%)] Loss: 11.0 (11.0) Batch (t): 0.2\n", LogLine(11.0)),
        ("Global Steps: 1 Train Epoch: 0 [  8/10000 (0%)] Loss: 11.0 Grad Norm: 2.5 (2.5)\n", LogLine(11.0, 2.5, 1)),
        (
            '{"step": 1, "loss_metrics/global_max_loss": 11.2, "loss_metrics/global_avg_loss": 11.0, "gnorm": 2.5}\n',
            LogLine(11.0, 2.5, 1),
        ),  # torchtitan
        ("step_idx: 0, batch: 0, avg loss: 11.0, normalized loss: 9.6\n", LogLine(11.0, None, 0)),
        ("Step 1 | Avg Loss: 11.2 | Loss: 11.0\n", LogLine(11.0, None, 1)),
        # A running mean, terms of a sum, and names of cross-entropies.
        ("5/9 [0:1<1, 1s/it, loss=6.7, reduced_train_loss=13.4, global_step=1.0]\n", LogLine(13.4, None, 1)),
        ("Step: 0 / 0 - total loss: 10.8 - mlm_loss: 10.4 - nsp_loss: 0.4\n", LogLine(10.4, None, 0)),
        ("completed step: 0, loss: 13.5, main_model_loss: 12.3, mtp_loss: 1.2\n", LogLine(12.3, None, 0)),
        ("step 1 | loss=581.4 (avg50: 581.4) | CE=10.3 parity=5.2 | gnorm 1419.9\n", LogLine(10.3, 1419.9, 1)),
        (
            "Step      1: train CrossEntropyLoss |  10.4\nStep      1: eval  CrossEntropyLoss |  10.5\n",
            LogLine(10.4, None, 1),
        ),
        # Norms of groups of parameters, and other names of norms.
        ("step=1 loss=11.6 grad_norm={'0_default': 3.0, '1_fp32': 4.0} lr=1\n", LogLine(11.6, 5.0, 1)),
        ("it=1 loss=3.2 grad_l2=1.25e+01 grad_absmax=1.4 accum_l2=7.3\n", LogLine(3.2, 12.5, 1)),
        ("step 1 loss=6.4, grad_2.0_norm_total_step=3.5\n", LogLine(6.4, 3.5, 1)),
        ("| epoch 001  2000 / 8223 loss=1.27 (1.50), gnorm=2.1\n", "got step 2000 first in"),
        # Validation losses by a field, and records inside of a JSON object.
        (
            '{"step": 0, "split": "val", "loss": 10.9}\n{"step": 0, "split": "train", "loss": 10.8}\n',
            LogLine(10.8, None, 0),
        ),
        ("split,step,loss\nval,0,10.9\ntrain,0,10.8\n", LogLine(10.8, None, 0)),
        ('{"step": 0, "train": {"loss": 11.0}, "val": {"loss": 10.9}}\n', LogLine(11.0, None, 0)),
        (
            '{"runs": [{"name": "a", "metrics": [{"step": 0, "loss": 10.99}], "evaluations": [{"loss": 5.0}]}]}',
            LogLine(10.99, None, 0),
        ),
        ('{"step": 1, "loss": 11.0, "ranks": [{"loss": 10.0}]}', LogLine(11.0, None, 1)),
        (
            "step 1 | load_balancing_loss: 1.0 | z_loss: 2.0 | lm loss: 11.0 | loss scale: 8.0 | mtp_1 loss: 11.5\n",
            LogLine(11.0, None, 1, apart={"load_balancing_loss": 1.0, "z_loss": 2.0, "loss scale": 8.0}),
        ),
        # Frameworks
        (
            '{"_step": 1, "optim/total_grad_norm": 2.5, "train/CrossEntropyLoss": 11.0, "train/Perplexity": 59874.1, '
            '"train/loss": 11.5, "throughput/total_tokens": 4e6, "grad/transformer.blocks.0.ff_out.weight.norm": 0.5}',
            LogLine(11.0, 2.5, 1, {"grad/transformer.blocks.0.ff_out.weight.norm": 0.5}),
        ),
        (
            '{"best_metric": null, "epoch": 0.1, "global_step": 500, "log_history": '
            '[{"grad_norm": 2.5, "loss": 11.0, "step": 1}, {"loss": 9.0, "st',
            LogLine(11.0, 2.5, 1),
        ),
        ("it: 0 val_loss: 11.0092\nit: 250 loss: 5.9\nit: 500 loss: 5.1\n", LogLine(11.0092, None, 0)),
        # Steps
        ('{"_step": 7, "step": 5, "global_step": 2, "train/global_step": 1, "loss": 11.0}\n', LogLine(11.0, None, 1)),
        ('{"_step": 7, "step": 5, "global_step": 1, "loss": 11.0}\n', LogLine(11.0, None, 1)),
        ('{"_step": 7, "train_step": 1, "loss": 11.0}\n', LogLine(11.0, None, 1)),
        ('{"_step": 7, "iteration": 1, "loss": 11.0}\n', LogLine(11.0, None, 1)),
        ('{"_step": 7, "trainer/global_step": 1, "loss": 11.0}\n', LogLine(11.0, None, 1)),
        ('{"_step": 1, "step": 0.5, "loss": 11.0}\n', LogLine(11.0, None, 1)),
        ('{"loss": 11.0, "tokens/s": 1200, "steps/s": 6, "steps_per_second": 5}\n', LogLine(11.0)),
        ("micro iteration 1 loss 11.0\n", LogLine(11.0, None, 1)),
        ("steps: 1 loss: 11.0\n", LogLine(11.0, None, 1)),
        *[(f"{name}: 5 loss: 11.0\n", LogLine(11.0)) for name in ("warmup steps", "max iter", "per it", "wall s")],
        # Losses
        *[
            (f'{{"step": 1, "{other}": 12.0, "{name}": 11.0}}\n', LogLine(11.0, None, 1))
            for name, other in [(n, "loss") for n in ("nll_loss", "llm_loss", "train/xent", "cross_entropy_loss")]
            + [("loss", n) for n in ("average_loss", "loss_mean", "avg_loss", "head_loss")]
            + [("nll", "accuracy"), ("current_loss", "lr"), ("info/loss", "lr")]
            + [(n, "lr") for n in ("language_model_loss", "batch_loss", "average_loss", "loss_mean", "step_loss")]
        ],
        # Norms
        *[
            (f'{{"step": 1, "loss": 11.0, "{name}": 9.0}}\n', LogLine(11.0, None, 1))
            for name in ("optim/step_norm", "grad_norm_layer", "param_norm", "grad/momentum_norm")
        ],
        *[
            (f'{{"step": 1, "loss": 11.0, "norm": 9.0, "{name}": 2.5}}\n', LogLine(11.0, 2.5, 1))
            for name in ("grad_norm", "grad_2_norm_total", "optim/total_grad_norm")
        ],
        ("step 1 loss 11.0 param norm: 9.0\n", LogLine(11.0, None, 1)),
        ("step: 1 loss: 11.0 final grad_norm: 2.5\n", LogLine(11.0, 2.5, 1)),
        (
            '{"step": 1, "loss": 11.0, "router_loss": 0.5, "z_loss": 0.0}\n',
            LogLine(11.0, None, 1, apart={"router_loss": 0.5}),
        ),
        (
            '{"_step": 1, "loss": 11.0, "gradients/h.0.fc.weight": {"_type": "histogram", "grad_norm": 9.0}}\n',
            LogLine(11.0, None, 1),
        ),
        # Parameters
        (
            '{"step": 1, "lr_2_x": 9, "n2_x": 9, ' + ", ".join(f'"{name}": 1' for name in NAMES) + "}",
            LogLine(None, None, 1, dict.fromkeys(NAMES, 1.0)),
        ),
        (
            '{"step": 1, "loss": 11.0, "module._orig_mod.h.0.fc.weight": 1, "submodule.h.1.fc.weight": 1}\n',
            LogLine(11.0, None, 1, {"h.0.fc.weight": 1.0, "submodule.h.1.fc.weight": 1.0}),
        ),
        # Validation
        *[
            (f'{{"step": 0, "{name}": "{part}", "loss": 10.9}}\n{{"step": 0, "loss": 10.8}}\n', LogLine(10.8, None, 0))
            for name, part in (
                ("mode", "eval"),
                ("phase", "test"),
                ("stage", "valid"),
                ("set", "dev"),
                ("subset", "Val"),
                ("type", "validation"),
            )
        ],
        ('{"step": 1, "name": "test", "loss": 11.0}\n', LogLine(11.0, None, 1)),
        # Numbers
        ("step 1 loss 11.0 norm .5\nstep 2 loss 10.9 norm 1.5\n", LogLine(11.0, 0.5, 1)),
        ("step: 0 loss: 11.0\nstep: 1 loss: 11.01 norm: 0.5\n", LogLine(11.01, 0.5, 1)),
        ("step: 1 loss: 11.0 norm: Infinity\nstep: 2 loss: 11.0 norm: 2.5\n", LogLine(11.0, 2.5, 2, skipped=1)),
        ("loss: inference\nstep: 1 loss: 11.0\n", LogLine(11.0, None, 1)),
        ("step 1, loss 10.5,200 tokens\n", LogLine(10.5, None, 1)),
        ("step 1, loss 10,9712\n", LogLine(10.9712, None, 1)),
        ("step 1, loss 11,12,13\n", LogLine(11.0, None, 1)),
        ("step 1 loss 11,12.5\n", LogLine(11.0, None, 1)),
        ("step;loss;grad_norm\n1;1,097e1;1,53e1\n", LogLine(10.97, 15.3, 1)),
        ("step;loss;grad_norm\n1;10.9712;1,234\n", LogLine(10.9712, 1234.0, 1)),
        ("step;loss;grad_norm\n1;10,971;1,220.512\n", LogLine(10971.0, 1220.512, 1)),
        ("step\tloss\tgrad_norm\n1\t10,971\t15,312\n", LogLine(10971.0, 15312.0, 1)),
        ("step,loss,grad_norm\n1,110,250\n", LogLine(110.0, 250.0, 1)),
        ("{'loss': tensor(11.0), 'step': 1}\n", LogLine(11.0, None, 1)),
        # Bars
        ("Epoch: [1/10] loss: 9.5\n", LogLine(9.5)),
        ("Epoch 12/20 [00:10<01:30, loss=9.5]\n", LogLine(9.5)),
        ("1/32 [>.....] - ETA: 9s - loss: 11.0\n", LogLine(11.0, None, 1)),
        ("1it [00:01,  1.2s/it, loss=11.0]\n", LogLine(11.0, None, 1)),
        # Tables
        ("step,metric,value\n1,loss,11.0\n1,loss\n1,grad_norm,2.5\n", LogLine(11.0, 2.5, 1)),
        ("tag,step,loss\nrun,1,11.0\n", LogLine(11.0, None, 1)),
        ("step loss norm\nstarting 5 workers\nstep: 1 loss: 11.0\n", LogLine(11.0, None, 1)),
        ("step, loss, name\n1, 11.0, run\n", LogLine(11.0, None, 1)),
        ("step 1 loss 11.0\n5 6 7 8\n", LogLine(11.0, None, 1)),
        ("loss\n11.0\n10.9\n", LogLine(11.0)),
        ("# loss: 5.0\nstep: 1 loss: 11.0\n", LogLine(11.0, None, 1)),
        # Text and JSON
        ("from os import path\nstep = loss = 3\n" + "=" * 40 + "\nstep:0/9 val_loss:11.0\n", LogLine(11.0, None, 0)),
        ("overflow, skipping step 1\nstep: 2 loss: 11.0 norm: 2.5\n", LogLine(11.0, 2.5, 2, skipped=1)),
        # Skipped steps, records without a loss, and a step on its own line.
        (
            "step=1, skipped=1, lr=[0.1]\nstep=2, skipped=2\nstep=3, skipped=2, loss=11.0\n",
            LogLine(11.0, None, 3, skipped=2),
        ),
        *[
            (f'{{"{name}": 59874.1, "loss": 15.8689}}\n', BITS)
            for name in ("perplexity", "train_ppl", "train/perplexity")
        ],
        ("step: 10 loss: 9.0\nstep: 20 lr: 1.0\nstep: 30 loss: 8.0\n", "got step 10 first in"),
        (
            '{"step": 1, "loss": null}\n{"step": 2, "loss": null}\n{"step": 3, "loss": 9.0}\n',
            "after step 1 without a loss",
        ),
        ("step: 1 loss: nan norm: nan\nstep: 2 loss: 11.0 norm: 2.5\n", "got loss nan at step 1"),
        ("step: 1 grad_norm: 2.5\nstep: 2 grad_norm: 2.4\n", "must have a loss"),
        (
            '{"step": 0, "loss": 11.0, "grad_norm": 0.0, "skipped iterations": 1}\n'
            '{"step": 1, "loss": 11.0, "grad_norm": 2.5}\n',
            LogLine(11.0, 2.5, 1, skipped=1),
        ),
        ("loss: 11.0\nlr: 0.1\nstep: 1\nloss: 10.9\nlr: 0.1\nstep: 2\n", LogLine(11.0, None, 1)),
        ("loss: 11.0\nstep: 2 train_loss: 9.0\n", LogLine(11.0)),
        ("loss: 11.0\nloss: 10.0 norm: 2.0\n", LogLine(11.0)),
        ("step: 1 loss: 11.0 norm: 2.5\nstep: 1 norm: 3.0\n", LogLine(11.0, 2.5, 1)),
        # Exports: lists, one panel of W&B, several runs; a norm before clipping, and a square only without a norm.
        ('[{"step": 1, "loss": 11.0, "grad_norm": 2.5}, {"step": 2, "loss": 9.0}]', LogLine(11.0, 2.5, 1)),
        (
            '{\n "best_metric": null,\n "log_history": [\n  {\n   "step": 1,\n   "loss": 11.0\n  }\n ]\n}',
            LogLine(11.0, None, 1),
        ),
        (
            '{"_step": 0, "grads/h.0.mlp.c_fc.weight": 0.5}\n{"_step": 1, "grads/h.0.mlp.c_fc.weight": 0.25}\n',
            LogLine(None, None, 0, {"grads/h.0.mlp.c_fc.weight": 0.5}),
        ),
        ('"Step","a - loss","a - loss__MIN","a - loss__MAX"\n"0","11.0","1","2"\n', LogLine(11.0, None, 0)),
        ("step,loss,grad_norm_sq\n0,11.0,6.25\n", LogLine(11.0, 6.25, 0, {}, "grad_norm_sq")),
        ("step,grad_norm^2,grad_norm,loss\n0,6.25,2.5,11.0\n", LogLine(11.0, 2.5, 0)),
        ("step,clipped_grad_norm,grad_norm_sq,loss\n0,1.0,6.25,11.0\n", LogLine(11.0, 6.25, 0, {}, "grad_norm_sq")),
        ("step: 0 loss: 11.0 grad norm squared: 6.25\n", LogLine(11.0, 6.25, 0, {}, "norm squared")),
        ('{"step": 0, "loss": 11.0, "clipped": {"norm": 1.0}}', LogLine(11.0, 1.0, 0, {}, "clipped/norm")),
        ('{"step": 0, "loss": 11.0, "clipped": true, "num_clipped": 3, "clipped loss": 0.5}', LogLine(11.0, None, 0)),
        (
            '"Step","a - train/loss","b - train/loss"\n"0","11.0","12.0"\n',
            "logged must contain one run, got several columns 'train/loss'",
        ),
        (
            '{"step": 0, "loss": 11.0, "l2_squared": {"h.0.fc.weight": 0.25}}\n',
            LogLine(11.0, None, 0, {"l2_squared/h.0.fc.weight": 0.25}),
        ),
        ("INFO loss: 11.0\n", LogLine(11.0)),
        ("loss: 11.0 ppl: 0\n", LogLine(11.0)),
        ("step: 1 loss: 0.0\n", "positive finite numbers, got loss 0 at step 1"),
        ("step: 1 loss: 11.0 norm: inf\nstep: 2 loss: 11.0 norm: nan\n", "got norm inf at step 1"),
        (
            '{"step": 0, "loss": 11.0, "grad_norm": 0.0, "skipped iterations": 0}\n'
            '{"step": 1, "loss": 11.0, "grad_norm": 2.5}\n',
            LogLine(11.0, 2.5, 1),
        ),
        ("time per iteration: 95 iteration: 1 loss: 11.0\n", LogLine(11.0, None, 1)),
        ("2.5it/1s loss=11.0\n", LogLine(11.0)),
        ("step 1 took 5.3s loss: 11.0\n", LogLine(11.0, None, 1)),
        ("2it [00:01, 1.2it/s]\ntraining loss: 9.0\n", "got step 2 first in"),
        ("it: 1 loss: 11.0: 5/10 [00:01<00:02]\n", LogLine(11.0, None, 1)),
        ("skipped 3 files\nskipped | 4\nstep: 1 loss: 11.0\n", LogLine(11.0, None, 1)),
        ("step 1 loss 11.0 Param Norm: 9.0\n", LogLine(11.0, None, 1)),
        ("step\tloss\tlr\n1\t10,97\t0.001\n", "must have a loss"),
        ("step\tloss\n1\t10.971\n2\t10.812\n", LogLine(10.971, None, 1)),
        ("step: 1; loss: 10,971; grad_norm: 15,312\n", LogLine(10971.0, 15312.0, 1)),
        ("step: 1,50 loss: 10.5,12\n", LogLine(10.5, None, 1)),
        ("step,loss\n1,11\n2,10\n", LogLine(11.0, None, 1)),
        ("'step','loss'\n'1','11.0'\n", LogLine(11.0, None, 1)),
        *[(f"{head}\n0,0.5\nstep: 1 loss: 11.0\n", LogLine(11.0, None, 1)) for head in ("name,value", "step,accuracy")],
        ('{"step": 0, "val": {"loss": 10.9}, "train": {"loss": 11.0}}\n', LogLine(11.0, None, 0)),
        ("step,tag,value\n1,loss,none\n1,loss,11.0\n", LogLine(11.0, None, 1)),
        ("SLOWEST STEP 1 LOSS 11.0 TOTAL NORM 2.5\n", LogLine(11.0, 2.5, 1)),
        ("tag,step,value\nlr,,0.1\nloss,1,11.0\nloss,0,12.0\n", LogLine(12.0, None, 0)),
        ("step loss norm 5\n1 2 3 4\nstep: 1 loss: 11.0\n", LogLine(11.0, None, 1)),
        ("Up. 1 : Cost 350.5 : Time 1.0s\n", "must have a loss"),
        (" \n", "is empty"),
        ("_step: 1 loss: 10.97 grad_norm: 15.3\n", LogLine(10.97, 15.3, 1)),
        ("0/loss=10.97 0/grad_norm=15.3\n", LogLine(10.97, 15.3)),
        ('{"loss": 3.0, "history": [5, {"step": 1, "loss": 11.0}]}\n', LogLine(11.0, None, 1)),
        ('{"step": 500, "history": [{"step": 1, "loss": 11.0}]}\n', LogLine(11.0, None, 1)),
        ('[{"step": 1, "loss": 11.0}, 5, {"step": 2, "loss": 10.0}]\n', LogLine(11.0, None, 1)),
    ],
)
def test_words_and_numbers(tmp_path, text, line):
    (tmp_path / "log").write_text(text)
    if isinstance(line, str):
        with pytest.raises(ValueError, match=line):
            read_log(tmp_path / "log")
    else:
        assert read_log(tmp_path / "log") == line


def test_events_of_tensorboard(tmp_path, monkeypatch):
    """The scalars of tbparse are read by step; without tbparse one line says what to do."""
    file = tmp_path / "events.out.tfevents.1.host"
    file.write_bytes(b"\x18\x00")
    rows = [(9.0, 10, "train/loss"), (1e3, 1, "lr"), (11.0, 1, "train/loss"), (2.5, 1, "grad_norm")]
    reader = SimpleNamespace(scalars=pd.DataFrame(rows, columns=["value", "step", "tag"]))
    monkeypatch.setitem(sys.modules, "tbparse", SimpleNamespace(SummaryReader=lambda path: reader))
    assert read_log(file) == read_log(tmp_path) == LogLine(11.0, 2.5, 1)
    monkeypatch.setitem(sys.modules, "tbparse", None)
    for path in (file, tmp_path):
        with pytest.raises(ValueError, match=r"install gradbounds\[tensorboard\], or .* folder of the CSV files"):
            read_log(path)
