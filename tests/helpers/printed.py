"""Outputs of `gradbounds predict`, as text and as numbers."""

import json

from gradbounds.cli import main


def output(capsys, *arguments, code=0):
    assert main(["predict", *arguments]) == code
    return capsys.readouterr().out


def found(capsys, *arguments, code=0):
    return json.loads(output(capsys, *arguments, "--json", code=code))
