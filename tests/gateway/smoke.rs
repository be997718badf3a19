//! Makes one call in each format through the complete gateway.

use crate::prelude::*;

#[tokio::test]
async fn a_chat_call_and_a_messages_call_are_answered_and_charged() {
    let (world, key) = World::start_with_key().await;
    let chat = world.chat(&key, &chat_body("Привет")).await;
    assert_eq!(
        chat.json()["choices"][0]["message"]["content"],
        "Вы написали: Привет"
    );
    let messages = world.messages(&key, &messages_body("Привет")).await;
    assert_eq!(messages.json()["content"][0]["text"], "Вы написали: Привет");
    // Each call has 9 input tokens and 3 output tokens. It costs 9 × 100 + 3 × 200 µ₽ with the model `chat`, and ten
    // times that with `messages`.
    assert_eq!(world.receipt(&chat.number()).await["charged_rub"], "0.0015");
    assert_eq!(
        world.receipt(&messages.number()).await["charged_rub"],
        "0.015"
    );
    assert_eq!(world.settled(&key).await["balance_rub"], "999.9835");
}
