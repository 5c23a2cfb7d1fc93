from django.core.management import load_command_class

from rivet_workflows import checks
from rivet_workflows.conf import Settings
from tests.docs.pages import DOCS, run_page

run_page("operations.md", globals())

PAGE = (DOCS / "operations.md").read_text(encoding="utf-8")


def test_the_advice_for_sqlite_satisfies_our_checks():
    assert list(checks._sqlite(globals()["DATABASES"]["default"])) == []


def test_the_options_of_the_worker_are_all_there():
    parser = load_command_class("rivet_workflows", "rivet_worker").create_parser("manage.py", "rivet_worker")
    of_django = load_command_class("django.core", "migrate").create_parser("manage.py", "migrate")
    known = {option for action in of_django._actions for option in action.option_strings}
    own = {option for action in parser._actions for option in action.option_strings} - known
    assert own == {"--concurrency", "--processes", "--actors", "--grace", "--burst", "--until-idle"}
    for option in own:
        assert f"| `{option}" in PAGE, option


def test_the_numbers_on_the_page_are_the_defaults():
    defaults = Settings()
    assert (defaults.HEARTBEAT, defaults.LEASE, defaults.GRACE, defaults.MAX_STARTS) == (2, 6, 15, 5)
    assert defaults.RETENTION == 30 * 86_400


def test_the_commands_of_the_terminal_are_all_there():
    parser = load_command_class("rivet_workflows", "rivet_actors").create_parser("manage.py", "rivet_actors")
    commands = next(action.choices for action in parser._actions if action.dest == "command")
    listed = PAGE.partition("## From a terminal")[2].partition("## Pruning")[0]
    assert [command for command in commands if f"`{command}`" not in listed] == []
