"""Pictures of claims, predictions and samples: data frames in, matplotlib Figures out."""

from figures.concentration import concentration
from figures.distribution import distribution
from figures.engine_cost import engine_cost
from figures.hessian_eigenvalue import hessian_eigenvalue
from figures.hidden_energy import hidden_energy
from figures.layer_growth import layer_growth
from figures.layer_profile import layer_profile
from figures.mean_hessian import mean_hessian
from figures.placements import placements
from figures.probe import probe
from figures.proof_chain import slack
from figures.relaxation_path import path
from figures.relaxations import relaxations
from figures.scaling import local_exponents, scaling
from figures.spectra import curvature
from figures.style import style
from figures.training.first_step import first_step_rates, stable_rates
from figures.training.steps import coordinate_check, placement_losses, training_steps
from figures.translation.fig3 import fig3
from figures.translation.warmup import warmup_ends, warmup_gradients, warmup_losses, warmup_rates

__all__ = [
    "concentration",
    "coordinate_check",
    "curvature",
    "distribution",
    "engine_cost",
    "fig3",
    "first_step_rates",
    "hessian_eigenvalue",
    "hidden_energy",
    "layer_growth",
    "layer_profile",
    "local_exponents",
    "mean_hessian",
    "path",
    "placement_losses",
    "placements",
    "probe",
    "relaxations",
    "scaling",
    "slack",
    "stable_rates",
    "style",
    "training_steps",
    "warmup_ends",
    "warmup_gradients",
    "warmup_losses",
    "warmup_rates",
]
