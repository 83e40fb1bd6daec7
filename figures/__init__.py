"""Pictures of claims, predictions and samples: data frames in, matplotlib Figures out."""

from figures.concentration import concentration
from figures.distribution import distribution
from figures.hidden_energy import hidden_energy
from figures.layer_profile import layer_profile
from figures.placements import placements
from figures.probe import probe
from figures.proof_chain import slack
from figures.relaxation_path import path
from figures.relaxations import relaxations
from figures.scaling import local_exponents, scaling
from figures.spectra import curvature
from figures.style import style
from figures.training.first_step import first_step_rates
from figures.training.steps import coordinate_check, placement_losses, training_steps

__all__ = [
    "concentration",
    "coordinate_check",
    "curvature",
    "distribution",
    "first_step_rates",
    "hidden_energy",
    "layer_profile",
    "local_exponents",
    "path",
    "placement_losses",
    "placements",
    "probe",
    "relaxations",
    "scaling",
    "slack",
    "style",
    "training_steps",
]
