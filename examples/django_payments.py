"""A Django service behind the gateway, in which a payment and its key are one row: what was cut off can be executed again.

pip install django
python django_payments.py 9000
ONCEGATE_IDEMPOTENCY__ON_UNKNOWN=retry oncegate serve --upstream http://127.0.0.1:9000
"""

import hashlib
import json
import sys
from wsgiref.simple_server import make_server

try:
    import django
except ImportError:
    sys.exit("Django is not installed: pip install django")
from django.conf import settings

settings.configure(
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "payments.sqlite3"}},
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["*"],
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
)
django.setup()

from django.core.wsgi import get_wsgi_application  # noqa: E402 - Django wants its settings first, here and below
from django.db import connection, models  # noqa: E402 - see above
from django.http import HttpRequest, JsonResponse  # noqa: E402 - see above
from django.urls import path  # noqa: E402 - see above


class Payment(models.Model):  # type: ignore[misc]  # Django has no types
    """A payment, and whose key it was made under."""

    caller = models.CharField(max_length=64)
    key = models.CharField(max_length=257)
    amount = models.IntegerField()

    class Meta:
        """One payment for one caller and one key, whatever else fails."""

        app_label = "payments"
        constraints = (models.UniqueConstraint(fields=["caller", "key"], name="once"),)


def payments(request: HttpRequest) -> JsonResponse:
    """POST makes a payment, or finds the one that an earlier attempt has made; GET lists them."""
    if request.method == "GET":
        return JsonResponse(list(Payment.objects.values("id", "amount")), safe=False)
    key = request.headers.get("Idempotency-Key")
    try:
        amount = int(json.loads(request.body)["amount"])
    except (ValueError, KeyError, TypeError):
        key = None
    if key is None:
        return JsonResponse({"error": 'send an Idempotency-Key, and {"amount": 30}'}, status=400)
    # Two callers may have the same key. What tells them apart here is what does so at the gateway.
    caller = hashlib.sha256(request.headers.get("Authorization", "").encode()).hexdigest()
    payment, _ = Payment.objects.get_or_create(caller=caller, key=key, defaults={"amount": amount})
    return JsonResponse({"id": payment.id, "amount": payment.amount}, status=201)


urlpatterns = [path("payments", payments)]


def main(port: int) -> None:
    """Serve on ``port``."""
    if Payment._meta.db_table not in connection.introspection.table_names():
        with connection.schema_editor() as editor:
            editor.create_model(Payment)
    with make_server("127.0.0.1", port, get_wsgi_application()) as server:
        server.serve_forever()


if __name__ == "__main__":
    main(int(sys.argv[1]))
