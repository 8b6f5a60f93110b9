"""The addresses of the shop."""

from __future__ import annotations

from django.contrib import admin
from django.urls import path
from orders import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("orders/", views.create),
    path("orders/<int:number>/", views.show),
]
