# mypy: ignore-errors
import sys

from openapi_client import ApiClient, ApiException, Configuration
from openapi_client.api.messages_api import MessagesApi
from openapi_client.models import CancellationBody, MessageBody, RescheduleBody, Where

api = MessagesApi(ApiClient(Configuration(host=f"http://{sys.argv[1]}")))
message = MessageBody(topic="python", value="v", headers={"order": "17"}, delay_ms=3_600_000)
stored = api.send_message(message, idempotency_key="python-1")
print(api.send_message(message, idempotency_key="python-1").id == stored.id)
print(stored.due_ms > 1 << 40)
print(api.search_messages(topic=["python"]).messages[0].id == stored.id)
moved = api.reschedule_message(stored.id, RescheduleBody(delay_ms=7_200_000))
print(api.get_message(moved.new_id).state)
print(api.cancel_message(moved.new_id).answer)
where = CancellationBody(where=Where(topic=["python"]))
print(api.cancel_matching_messages(where, dry_run=True).messages)
try:
    api.cancel_message("nobody")
except ApiException as error:
    print(error.status)
