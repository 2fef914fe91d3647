package main

import (
	"context"
	"fmt"
	"os"

	client "github.com/GIT_USER_ID/GIT_REPO_ID"
)

func must[Answer, Response any](answer Answer, _ Response, err error) Answer {
	if err != nil {
		panic(err)
	}
	return answer
}

func main() {
	configuration := client.NewConfiguration()
	configuration.Servers = client.ServerConfigurations{{URL: "http://" + os.Args[1]}}
	api, ctx := client.NewAPIClient(configuration).MessagesAPI, context.Background()
	message := client.NewMessageBody()
	message.SetTopic("go")
	message.SetValue("v")
	message.SetHeaders(map[string]string{"order": "17"})
	message.SetDelayMs(3600000)
	send := api.SendMessage(ctx).MessageBody(*message).IdempotencyKey("go-1")
	stored := must(send.Execute())
	fmt.Println(must(send.Execute()).GetId() == stored.GetId())
	fmt.Println(stored.GetDueMs() > 1<<40)
	found := must(api.SearchMessages(ctx).Topic([]string{"go"}).Execute())
	fmt.Println(found.GetMessages()[0].GetId() == stored.GetId())
	later := client.NewRescheduleBody()
	later.SetDelayMs(7200000)
	moved := must(api.RescheduleMessage(ctx, stored.GetId()).RescheduleBody(*later).Execute())
	fmt.Println(must(api.GetMessage(ctx, moved.GetNewId()).Execute()).GetState())
	fmt.Println(must(api.CancelMessage(ctx, moved.GetNewId()).Execute()).GetAnswer())
	where := client.NewWhere()
	where.SetTopic([]string{"go"})
	body := client.NewCancellationBody(*where)
	fmt.Println(must(api.CancelMatchingMessages(ctx).CancellationBody(*body).DryRun(true).Execute()).GetMessages())
	_, response, _ := api.CancelMessage(ctx, "nobody").Execute()
	fmt.Println(response.StatusCode)
}
