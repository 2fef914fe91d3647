import java.util.List;
import org.openapitools.client.*;
import org.openapitools.client.api.*;
import org.openapitools.client.model.*;

public class Try {
    public static void main(String[] addresses) throws Exception {
        var client = new ApiClient();
        client.updateBaseUri("http://" + addresses[0]);
        var api = new MessagesApi(client);
        var message = new MessageBody().topic("java").value("v").putHeadersItem("order", "17");
        message.delayMs(3600000L);
        var stored = api.sendMessage(message, "java-1");
        System.out.println(api.sendMessage(message, "java-1").getId().equals(stored.getId()));
        System.out.println(stored.getDueMs() > 1L << 40);
        var found = api.searchMessages(List.of("java"), null, null, null, null, null, null, null);
        System.out.println(found.getMessages().get(0).getId().equals(stored.getId()));
        var moved = api.rescheduleMessage(stored.getId(), new RescheduleBody().delayMs(7200000L));
        System.out.println(api.getMessage(moved.getNewId()).getState());
        System.out.println(api.cancelMessage(moved.getNewId()).getAnswer());
        var where = new CancellationBody().where(new Where().addTopicItem("java"));
        System.out.println(api.cancelMatchingMessages(where, true).getMessages());
        try {
            api.cancelMessage("nobody");
        } catch (ApiException error) {
            System.out.println(error.getCode());
        }
    }
}
