"""Read the configuration files of published models, and convert them into network descriptions (`Stack`)."""

from theory.configurations.configuration_file import PUBLISHED, published, stack_from_config
from theory.configurations.reading import Note, context, drawn_by, model_type

__all__ = [
    "Note",
    "PUBLISHED",
    "context",
    "drawn_by",
    "model_type",
    "published",
    "stack_from_config",
]
