from tests.docs.pages import run_page

run_page("rest-and-realtime.md", globals())
