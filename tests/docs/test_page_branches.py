from tests.docs.pages import run_page

run_page("branches.md", globals())
