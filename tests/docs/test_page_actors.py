import pytest
from rest_framework.test import APIClient

from tests.docs.pages import run_page

run_page("actors.md", globals())


@pytest.mark.parametrize(
    ("name", "staff", "answer"), [("ada", False, 200), ("eve", False, 403), ("root", True, 200)]
)
def test_a_diary_is_ones_own(rivet, django_user_model, name, staff, answer):
    diary = rivet.client.create("diary", "ada")
    api = APIClient()
    assert api.post(f"/rivet/actors/{diary.actor_id}/actions/read/").status_code == 401
    api.force_authenticate(django_user_model.objects.create_user(name, is_staff=staff))
    assert api.post(f"/rivet/actors/{diary.actor_id}/actions/read/").status_code == answer
    assert api.delete(f"/rivet/actors/{diary.actor_id}/").status_code == (204 if name == "ada" else 403)
