from tests.docs.pages import run_page

run_page("changing-code.md", globals())
