"""The zoo: stock models with their default dropout, only their sizes made small.

Importing this module registers all of them; a model's own package is imported when it is built.
"""

from zoo import huggingface_models, peft_models, timm_models, torch_models
from zoo.registry import RECORDS, ZOO, Case, Entry

__all__ = ["CORE", "RECORDS", "ZOO", "Case", "Entry"]

CORE = [name for name, entry in ZOO.items() if entry.core]

# The modules are imported for what they add.
_ = (huggingface_models, peft_models, timm_models, torch_models)
