"""Networks that are exported once, as the splitter's tests have them."""

from tests.splitter.conftest import zoo

__all__ = ["zoo"]
