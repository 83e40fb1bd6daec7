"""Pictures of claims, predictions and samples: data frames in, matplotlib Figures out."""

from figures.hidden_energy import hidden_energy
from figures.profile import layer_profile
from figures.scaling import scaling
from figures.style import style

__all__ = ["hidden_energy", "layer_profile", "scaling", "style"]
