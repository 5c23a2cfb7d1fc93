from tests.docs.pages import run_page

run_page("operations.md", globals())
