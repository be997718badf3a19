//! Responses of the scripted vendor that speaks the Responses format.

use serde_json::{Value, json};

use crate::vendor_log::{Call, TOKEN};

impl Call {
    /// Returns the events of a Responses stream. The last event contains the usage.
    pub(crate) fn responses_events(
        &self,
        served: &str,
        reported: &str,
    ) -> (Vec<String>, String, Vec<String>) {
        let event = |kind: &str, fields: Value| {
            let mut data = json!({ "type": kind });
            data.as_object_mut()
                .unwrap()
                .extend(fields.as_object().unwrap().clone());
            format!("event: {kind}\ndata: {data}\n\n")
        };
        let mut begun = self.response("in_progress", "");
        begun["output"] = json!([]);
        begun["usage"] = Value::Null;
        let text = TOKEN.repeat(usize::try_from(self.tokens).unwrap());
        let whole = self.response("completed", &text);
        let item = |status: &str, content: Value| {
            json!({ "output_index": 0, "item": { "type": "message", "id": "msg_0", "role": "assistant",
                "status": status, "content": content } })
        };
        let part = |text: &str| {
            json!({ "item_id": "msg_0", "output_index": 0, "content_index": 0,
                "part": { "type": "output_text", "text": text, "annotations": [] } })
        };
        let mut done = item("completed", whole["output"][0]["content"].clone());
        done["z_mark"] = self.mark('d').into();
        let delta = json!({ "item_id": "msg_0", "output_index": 0, "content_index": 0, "delta": TOKEN,
            "logprobs": [], "z_mark": served });
        (
            vec![
                event("response.created", json!({ "response": begun })),
                event("response.output_item.added", item("in_progress", json!([]))),
                event("response.content_part.added", part("")),
            ],
            event("response.output_text.delta", delta),
            vec![
                event("response.content_part.done", part(&text)),
                event("response.output_item.done", done),
                event(
                    "response.completed",
                    json!({ "response": whole, "z_mark": reported }),
                ),
            ],
        )
    }

    pub(crate) fn response(&self, status: &str, text: &str) -> Value {
        json!({ "id": format!("resp_{}", self.id), "object": "response", "created_at": 1, "status": status,
            "model": "vendor-responses", "error": null, "incomplete_details": null,
            "output": [{ "type": "message", "id": "msg_0", "role": "assistant", "status": status,
                "content": [{ "type": "output_text", "text": text, "annotations": [] }] }],
            "usage": self.usage(self.tokens) })
    }
}
