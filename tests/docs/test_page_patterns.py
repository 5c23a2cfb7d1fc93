from tests.docs.pages import run_page

run_page("patterns.md", globals())
