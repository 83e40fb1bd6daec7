"""What exact tests of a module say, as lines."""

import pandas as pd

from checks.models.exact_alarms import exact_alarms
from checks.models.sections import sight_lines
from simulate.modules.exact_tests import exact_tests
from simulate.modules.factories import Made
from simulate.modules.layers import layer_lists


def exactly(module, inputs, loss, layers=()):
    """Alarms, notes and lines of exact tests alone."""
    try:
        lists = layer_lists(module, layers, 0)
    except ValueError:
        lists = []
    tests = exact_tests(Made("it", module, inputs, loss), lists)
    alarms, notes = exact_alarms(tests)
    return (
        [str(alarm) for alarm in alarms],
        notes,
        sight_lines(pd.DataFrame(columns=["part", "layer", "quantity"]), tests),
    )
