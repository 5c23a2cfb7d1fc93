from tests.docs.pages import run_page

run_page("rollback.md", globals())
