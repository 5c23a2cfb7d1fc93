"""The shop's pages."""

from __future__ import annotations

from django.contrib.auth import views as auth_views
from django.urls import path

from shop import views

urlpatterns = [
    path("", views.shop, name="shop"),
    path("orders/", views.place_order, name="place-order"),
    path("login/", auth_views.LoginView.as_view(template_name="shop/login.html"), name="login"),
    path("logout/", auth_views.LogoutView.as_view(), name="logout"),
    path("demo/worker/", views.worker, name="worker"),
    path("demo/worker/kill/", views.kill_worker, name="kill-worker"),
]
