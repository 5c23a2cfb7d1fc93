from rivet_workflows import conf
from tests.docs.pages import run_page

run_page("settings.md", globals())


def test_the_example_is_valid(settings):
    settings.RIVET_WORKFLOWS = globals()["RIVET_WORKFLOWS"]
    assert list(conf.problems()) == []
