"""Logs of public frameworks, written by somebody who had not read the reader, with a table of what is right."""

import sys
import tomllib
from pathlib import Path

import pytest

from gradbounds.actions.log_line import LogLine, first_record, read_log

FOLDER = Path(__file__).parents[2] / "data" / "public_logs"
TABLE = [row for name in ("logs", "more_logs") for row in tomllib.loads((FOLDER / f"{name}.toml").read_text())["log"]]


def expected(row):
    """The table's row as the reader has it."""
    loss, norm, step = (None if row[key] == "none" else row[key] for key in ("loss", "grad_norm", "first_step"))
    steps = int(row["record"].split()[2]) if row["record"].startswith("mean") else 1
    return loss, norm, step, steps, row["skipped"]


@pytest.mark.parametrize("row", TABLE, ids=lambda row: row["file"])
def test_logs_of_frameworks(row):
    path = FOLDER / row["file"]
    if row["answer"] == "refuse":
        with pytest.raises(ValueError, match="logged must have a loss of a training step"):
            read_log(path)
        return
    line = first_record(path)
    loss, norm, step, steps, skipped = expected(row)
    assert line.loss == pytest.approx(loss, abs=1e-3 if "within 0.001" in row.get("note", "") else 1e-5)
    assert (line.norm, line.steps, line.skipped) == (norm, steps, skipped)
    # The table says of one log that its step is not stated beside the loss, and that the bar above shows 0.
    assert line.step == (0 if row["file"] == "x_transformers_enwik8.txt" else step)
    if row["answer"] in ("mean", "later") or steps > 1:
        with pytest.raises(ValueError, match=rf"got step {step} first") as error:
            read_log(path)
        assert (f"a mean over {steps} steps" in str(error.value)) == (steps > 1)
    else:
        assert read_log(path) == line
        assert ("no step" in line.facts()) == (line.step is None)


def test_names_of_wrapped_parameters():
    line = read_log(FOLDER / "composer_wandb_wrapped_names.jsonl")
    assert "l2_norm/grad/model.transformer.blocks.0.attn.Wqkv.weight" in line.parameters
    assert not any("wrapped" in name for name in line.parameters)


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
    """Without tbparse one line says what to do."""
    monkeypatch.setitem(sys.modules, "tbparse", None)
    file = tmp_path / "events.out.tfevents.1.host"
    file.write_bytes(b"\x18\x00")
    for path in (file, tmp_path):
        with pytest.raises(ValueError, match=r"install gradbounds\[tensorboard\], or .* folder of the CSV files"):
            read_log(path)
