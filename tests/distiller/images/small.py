"""A small image encoder, and pictures of bars that it can learn to tell apart in seconds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn import functional
from transformers import ViTConfig, ViTForImageClassification, ViTModel
from transformers.models.vit.image_processing_pil_vit import ViTImageProcessorPil

SIDE, PATCH, CLASSES = 16, 4, 4


def encoder(layers: int = 4, classes: int = CLASSES, seed: int = 0, width: int = 32, **changes: Any) -> Any:
    torch.manual_seed(seed)
    config = ViTConfig(
        **{
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": 4,
            "intermediate_size": 2 * width,
            "image_size": SIDE,
            "patch_size": PATCH,
            "num_labels": max(classes, 1),
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            **changes,
        }
    )
    model = ViTForImageClassification(config) if classes else ViTModel(config, add_pooling_layer=False)
    return model.eval()


def picture(label: int, seed: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Noise with a bright bar in the row that the class names."""
    random = np.random.default_rng(seed)
    made = random.integers(0, 120, (SIDE, SIDE, 3), dtype=np.uint8)
    made[label * PATCH : (label + 1) * PATCH, random.integers(0, 8) :] += 120
    return made


def write(directory: Path, count: int) -> Path:
    """So many pictures with their labels, and the file that names them."""
    (directory / "pictures").mkdir(parents=True)
    lines = []
    for n in range(count):
        name = f"pictures/{n}.png"
        Image.fromarray(picture(n % CLASSES, n)).save(directory / name)
        lines.append(json.dumps({"image": name, "label": n % CLASSES}))
    file = directory / "pictures.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


def save(model: Any, directory: Path) -> None:
    model.save_pretrained(directory)
    ViTImageProcessorPil(size={"height": SIDE, "width": SIDE}).save_pretrained(directory)


def trained(model: Any, steps: int = 60) -> Any:
    """The encoder once it tells the bars apart."""
    torch.set_num_threads(1)  # the models are too small for more
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(steps):
        labels = torch.arange(32) % CLASSES
        images = np.stack([picture(int(label), 10_000 + 32 * step + n) for n, label in enumerate(labels)])
        pixels = torch.tensor(images).permute(0, 3, 1, 2) / 127.5 - 1  # as the processor makes them
        functional.cross_entropy(model(pixels).logits, labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model
