"""Django: a backend of `django.tasks`, `manage.py toril_worker`, enqueue on commit, a link in the admin.

    INSTALLED_APPS = [..., "toril.integrations.django"]     # and "django_tasks" before Django 6
    TASKS = {"default": {"BACKEND": "toril.integrations.django.backend.TorilBackend", "OPTIONS": {"redis": "redis://…"}}}

Guarantee: modules of Django are imported when the settings are there: this one imports nothing.
"""
