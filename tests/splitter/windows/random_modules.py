"""Random modules that make maps, some of whose Python looks at the size of the image."""

import torch
from torch import nn
from torch.nn import functional


class Drawn(nn.Module):
    """Convolutions, and between them steps that are drawn: `story` says which."""

    def __init__(self, rng, channels):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(rng.getrandbits(30))
            self.convolutions = nn.ModuleList(
                nn.Conv2d(channels if number == 0 else 4, 4, rng.choice([1, 3, 3, 5]), padding=rng.choice([0, 1, 1, 2]))
                for number in range(rng.randint(2, 4))
            )
        self.limit = rng.choice([60, 100, 150, 200, 250])
        self.multiple = rng.choice([2, 7, 8, 12, 14])
        self.mode = rng.choice(["nearest", "bilinear", "bicubic"])
        self.story = [rng.choice(STEPS) for _ in self.convolutions]

    def forward(self, image):
        values = image
        for convolution, step in zip(self.convolutions, self.story, strict=True):
            values = getattr(self, step)(convolution(values).relu(), image)
        return values

    def nothing(self, values, _image):
        return values

    def halved(self, values, _image):
        return functional.max_pool2d(values, 2, ceil_mode=self.limit > 100)

    def of_the_image_s_size(self, values, image):
        return functional.interpolate(values, size=image.shape[2:], mode=self.mode)

    def halved_and_back(self, values, _image):
        return functional.interpolate(functional.avg_pool2d(values, 2), size=values.shape[2:], mode=self.mode)

    def padded_where_needed(self, values, _image):
        height, width = values.shape[2:]
        if height % self.multiple:
            values = functional.pad(values, (0, 0, 0, self.multiple - height % self.multiple))
        if width % self.multiple:
            values = functional.pad(values, (0, self.multiple - width % self.multiple))
        return values

    def smaller_where_large(self, values, image):
        return functional.avg_pool2d(values, 2) if max(image.shape[2:]) > self.limit else values

    def by_its_longer_side(self, values, image):
        return values * 2 if image.shape[2] > image.shape[3] else values.tanh()

    def larger_where_small(self, values, image):
        return functional.pad(values, (3, 0, 2, 1)) if image.shape[2] < self.limit else values

    def scaled_by_size(self, values, image):
        return values * (100 / image.shape[2]) + image.shape[3] / 300


STEPS = [
    *("nothing", "halved", "of_the_image_s_size", "halved_and_back", "scaled_by_size"),
    *("padded_where_needed", "smaller_where_large", "by_its_longer_side", "larger_where_small"),
]
