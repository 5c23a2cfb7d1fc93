"""Clients of the REST interface: anonymous, signed in, staff."""

from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from tests.client.conftest import shop_actors  # noqa: F401  an autouse fixture


@pytest.fixture
def anonymous():
    return APIClient()


@pytest.fixture
def user(django_user_model):
    return django_user_model.objects.create_user("ann", password="x")


@pytest.fixture
def api(user):
    client = APIClient()
    client.force_authenticate(user)
    return client


@pytest.fixture
def staff(django_user_model):
    client = APIClient()
    client.force_authenticate(django_user_model.objects.create_user("root", is_staff=True))
    return client
