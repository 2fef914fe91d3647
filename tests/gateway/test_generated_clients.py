"""A client that a generator makes of the description compiles, and stores, finds, moves, cancels.

Java's compiler is the strictest of those that read generated code; what generators read alike is
held by ``test_description_rules.py``.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from support.broker import jars
from support.gatewayprocess import GatewayProcess
from support.java import SHORT_LIVED

ROOT = Path(__file__).resolve().parents[2]
TRY = """
import java.util.List;
import org.openapitools.client.*;
import org.openapitools.client.api.*;
import org.openapitools.client.model.*;

public class Try {
    public static void main(String[] addresses) throws Exception {
        var client = new ApiClient();
        client.updateBaseUri("http://" + addresses[0]);
        var api = new MessagesApi(client);
        var message = new MessageBody().topic("generated").value("v").putHeadersItem("order", "17");
        message.delayMs(3600000L);
        var stored = api.sendMessage(message, "generated-1");
        System.out.println(api.sendMessage(message, "generated-1").getId().equals(stored.getId()));
        System.out.println(stored.getDueMs() > 1L << 40);
        var found = api.searchMessages(List.of("generated"), null, null, null, null, null, null);
        System.out.println(found.getMessages().get(0).getId().equals(stored.getId()));
        var moved = api.rescheduleMessage(stored.getId(), new RescheduleBody().delayMs(7200000L));
        System.out.println(api.getMessage(moved.getNewId()).getState());
        System.out.println(api.cancelMessage(moved.getNewId()).getAnswer());
        var where = new CancellationBody().where(new Where().addTopicItem("generated"));
        System.out.println(api.cancelMatchingMessages(where, true).getMessages());
        try {
            api.cancelMessage("nobody");
        } catch (ApiException error) {
            System.out.println(error.getCode());
        }
    }
}
"""


def test_a_java_client_that_is_generated_does_all_that_one_is_for(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    (tools,) = (ROOT / ".cache").glob("clients-*")
    (generator,) = tools.glob("openapi-generator-cli-*.jar")
    run("java", *SHORT_LIVED, "-jar", generator, "generate", "-g", "java", "--library", "native",
        "-i", ROOT / "docs/openapi.json", "-o", tmp_path)  # fmt: skip
    (tmp_path / "Try.java").write_text(TRY)
    found = [one for one in tools.glob("*.jar") if one != generator]
    found += jars().glob("jackson-*.jar")
    classes = ":".join(map(str, [tmp_path / "classes", *found]))
    sources = (tmp_path / "src/main").rglob("*.java")
    run("javac", *(f"-J{one}" for one in SHORT_LIVED), "-nowarn", "-cp", classes,
        "-d", tmp_path / "classes", *sources, tmp_path / "Try.java")  # fmt: skip
    printed = run("java", *SHORT_LIVED, "-cp", classes, "Try", gateway.address)
    assert printed.split() == ["true", "true", "true", "pending", "cancelled", "0", "404"]


def run(*command: object) -> str:
    ended = subprocess.run(
        [str(one) for one in command], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, f"{ended.stdout[-3000:]}\n{ended.stderr[-3000:]}"
    return ended.stdout
