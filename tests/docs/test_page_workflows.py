from tests.docs.pages import run_page

run_page("workflows.md", globals())
