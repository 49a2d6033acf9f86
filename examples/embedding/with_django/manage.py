"""Django: ``atomic`` starts a run, ``manage.py pgflow`` works on it, and the admin shows it.

``settings.py`` names the app ``pgflow.django`` and the workflows; ``shop/views.py``
starts a run beside the order, ``shop/workflows.py`` ships it with the ORM. The runs are at
``/admin/pgflow/run/``.

Run it, in this folder::

    export DATABASE_URL=postgresql://...
    python manage.py migrate
    python manage.py runserver
    python manage.py pgflow workers

``uvicorn asgi:application`` serves the site and, at ``/pgflow/``, the console.
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "settings")
    execute_from_command_line(sys.argv)
