"""A plugin for pytest: with `--gradbounds-run RUN`, it tests whether the samples of a user's run agree with theory."""

from pathlib import Path

import pytest

OPTION = "--gradbounds-run"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the command-line option `--gradbounds-run` to pytest."""
    about = "run only the assertions of gradbounds about this run folder: exponents, means, committed verdicts"
    parser.getgroup("gradbounds").addoption(OPTION, metavar="RUN", help=about)


def pytest_configure(config: pytest.Config) -> None:
    """Restrict pytest to the tests about a run if `--gradbounds-run` is given.

    Raises:
        pytest.UsageError: the folder is no run that can be judged, or our packages cannot be imported.
    """
    folder = config.getoption(OPTION)
    if folder is None:
        return
    from gradbounds.shadowing import check_own_packages

    try:
        check_own_packages()
        from gradbounds import run_suite

        run_suite.compared_with_theory(folder)
    except (ValueError, ImportError) as error:
        raise pytest.UsageError(f"{OPTION}: {error}") from error
    config.args = [str(Path(run_suite.__file__))]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create one test for every verdict and every configuration of the run."""
    folder = metafunc.config.getoption(OPTION)
    if folder is None or metafunc.module.__name__.rpartition(".")[2] != "run_suite":
        return
    from gradbounds import run_suite

    for name, values in run_suite.compared_with_theory(folder).items():
        if name in metafunc.fixturenames:
            metafunc.parametrize(name, list(values.values()), ids=list(values))
