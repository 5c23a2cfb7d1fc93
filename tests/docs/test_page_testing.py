import pytest

from tests.docs.pages import run_page

run_page("testing.md", globals())


@pytest.fixture
def rivet_mode():
    """The page says what the default does, and chooses for itself where it speaks of the other."""
    return "replay"
