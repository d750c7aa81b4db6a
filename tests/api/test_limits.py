"""What is refused for a limit names the setting that raises it."""

import gzip
import re

import pytest

from serfer.api.admission import Admission
from serfer.api.decoding.decoder_process import Job, _reply
from serfer.api.http.body import ApiLimits, _too_large, decompress
from serfer.api.http.problems import Problem
from serfer.api.http.uploads import _too_many
from serfer.core.errors import ImageTooLargeError
from serfer.core.plan import Preprocess, Shape
from serfer.images import Recipe, decode_image
from serfer.settings import Settings
from tests.support.served import png

OWN = Settings(max_image_pixels=100, max_image_bytes=100)
SERVICE = Settings(max_image_pixels=100, api_max_pixels=100, max_image_bytes=50, api_max_body_bytes=50)


def recipe(settings):
    return Recipe(
        Preprocess(None, "nearest", "RGB", 1, (0,) * 3, (1,) * 3), Shape(3, 8, 8, flat=False), settings.image_limits()
    )


def small(settings):
    return Settings(max_image_pixels=settings.max_image_pixels, api_max_pixels=settings.api_max_pixels)


def refused(work, *arguments):
    with pytest.raises((Problem, ImageTooLargeError)) as caught:
        work(*arguments)
    return str(getattr(caught.value, "detail", caught.value))


REFUSED = {
    "max_image_pixels": lambda: refused(decode_image, png(20, 20), "x", recipe(small(OWN))),
    "api_max_pixels": lambda: refused(decode_image, png(20, 20), "x", recipe(small(SERVICE))),
    "max_image_bytes": lambda: refused(decode_image, png(), "x", recipe(OWN)),
    "api_max_body_bytes": lambda: refused(decode_image, png(), "x", recipe(SERVICE)),
    "api_max_request_pixels": lambda: _reply(Job("x", recipe(Settings()), 3, 10, 5.0, 0), png()).decode("latin-1"),
    "api_max_images": lambda: _too_many(ApiLimits()).detail,
    "api_held_bytes": lambda: refused(Admission(1, 1, held_bytes=1).bytes.hold, "me", 2),
    "api_in_flight": lambda: Admission(1, 1).queries.refusal().detail,
    "api_downloads": lambda: Admission(1, 1).downloads.refusal().detail,
}


@pytest.mark.parametrize("setting", REFUSED)
def test_refusal_for_a_limit_names_its_setting(setting):
    said = re.findall(r"SERFER_(\w+)", REFUSED[setting]())
    assert said[0].lower() == setting
    assert {name.lower() for name in said} <= {*Settings.model_fields}


def test_bodies_name_their_setting_packed_and_unpacked():
    packed = refused(decompress, gzip.compress(bytes(100)), "gzip", 10)
    assert "SERFER_API_MAX_BODY_BYTES" in packed
    assert "SERFER_API_MAX_BODY_BYTES" in _too_large(ApiLimits()).detail
