import sys

import pytest
import torch

from serfer.core.errors import ModelError
from splitter.network import source

FACTORY = """
from __future__ import annotations
from dataclasses import dataclass
import neighbour

@dataclass
class Config:
    width: int = 3

def make():
    return neighbour.build(Config().width)
"""


def test_a_factory_file_may_use_dataclasses_and_its_neighbours(tmp_path):
    (tmp_path / "net.py").write_text(FACTORY)
    (tmp_path / "neighbour.py").write_text("def build(width):\n    return ['built', width]\n")
    before = list(sys.path)
    assert source._call_factory(tmp_path / "net.py", "make") == ["built", 3]
    assert sys.path == before


def test_a_module_in_training_mode_is_refused_and_not_modified():
    module = torch.nn.Linear(2, 2).train()
    with pytest.raises(ModelError, match="training mode"):
        source.load(module, None)
    assert module.training
