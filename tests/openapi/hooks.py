"""Facts about the gateway that schemathesis needs in addition to its documents."""

import os

import schemathesis

MODELS = ["demo-chat", "demo-messages", "demo-responses"]
MODELS_OF = {"EmbeddingsRequest": ["demo-embedding"]}
# The demo's resources, by the names of path parameters. The other parameters keep the example of the document.
KNOWN = {
    "account": "demo",
    "client": "opencode",
    "file": "page.js",
    # The demo has no groups, so these paths return 404.
    "group": "team",
    "key": "demo-key",
    "model": "demo-chat",
    "month": "2026-11",
    "number": os.environ["RECEIPT_NUMBER"],
    # The demo has no payment provider, so these paths return 404.
    "payment": "019ac3f0-1c2e-7b4d-9f00-5d3b6a7c8e90",
    "provider": "yookassa",
    # The demo has no receivers and no vendor of this name, so these paths return 404.
    "receiver": "accounting",
    "vendor": "scripted-chat",
}


@schemathesis.hook
def before_load_schema(context, raw_schema):
    """The documents allow further fields in answers, but here every field must be documented. Models are replaced by
    the demo's."""
    schemas = raw_schema["components"]["schemas"]
    parts = {
        part["$ref"].rsplit("/", 1)[1]
        for schema in schemas.values()
        for part in schema.get("allOf", ())
    }
    for name, schema in schemas.items():
        if "allOf" in schema:
            schema["unevaluatedProperties"] = False
        elif name not in parts and "properties" in schema:
            schema.setdefault("additionalProperties", False)
        if name.endswith("Request"):
            schema["properties"]["model"]["enum"] = MODELS_OF.get(name, MODELS)
    for parameter in parameters(raw_schema):
        if parameter.get("in") == "path" and parameter["name"] in KNOWN:
            parameter["example"] = KNOWN[parameter["name"]]


def parameters(raw_schema):
    yield from raw_schema["components"].get("parameters", {}).values()
    for path in raw_schema["paths"].values():
        yield from path.get("parameters", ())
        for operation in path.values():
            if isinstance(operation, dict):
                yield from operation.get("parameters", ())


@schemathesis.hook
def before_call(context, case, kwargs):
    """Requests the page as a browser, because other clients get an empty answer without a content type. Does not wait
    for events that never arrive."""
    if (case.method, case.path) == ("GET", "/"):
        case.headers["accept"] = "text/html"
    if case.path == "/admin/v1/events" and case.query and str(case.query.get("wait", "")).isdecimal():
        # Waits that exceed the maximum are kept, and must be refused.
        if int(case.query["wait"]) <= 50:
            case.query["wait"] = 0


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """By the specification an unknown model is a 503, so it does not count as a server error."""
    if type(failure).__name__ != "ServerError" or response.status_code != 503:
        return True
    return response.json()["error"]["code"] != "model_not_found"
