"""Django: a backend of `django.tasks`, `manage.py toril_worker`, enqueue on commit, a link in the admin.

    INSTALLED_APPS = [..., "django_tasks", "toril.integrations.django"]
    TASKS = {"default": {"BACKEND": "toril.integrations.django.backend.TorilBackend", "OPTIONS": {"redis": "redis://…"}}}

Guarantee: modules of Django are imported when the settings are there: this one imports nothing.
"""
