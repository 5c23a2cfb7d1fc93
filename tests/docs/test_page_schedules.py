from tests.docs.pages import run_page

run_page("schedules.md", globals())
