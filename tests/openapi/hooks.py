"""Facts about the gateway that schemathesis needs in addition to its documents."""

import os

import schemathesis

MODELS = ["demo-chat", "demo-messages", "demo-responses"]
MODELS_OF = {"EmbeddingsRequest": ["demo-embedding"]}
# The demo's resources, by the names of parameters in paths.
KNOWN = {
    "account": "demo",
    "client": "opencode",
    "file": "page.js",
    # The demo has no groups: these are 404.
    "group": "team",
    "key": "demo-key",
    "model": "demo-chat",
    "month": "2026-11",
    "number": os.environ["RECEIPT_NUMBER"],
    # The demo has no provider: these are 404.
    "payment": "019ac3f0-1c2e-7b4d-9f00-5d3b6a7c8e90",
    "provider": "yookassa",
    # The demo has none of these: 404.
    "receiver": "accounting",
    "vendor": "scripted-chat",
}


@schemathesis.hook
def before_load_schema(context, raw_schema):
    """The documents allow further fields in answers; here every field must be documented. Models are the demo's."""
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
        if parameter.get("in") == "path":
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
    """Only browsers get the page; others get an empty answer without a content type. Does not wait for events that do not come."""
    if (case.method, case.path) == ("GET", "/"):
        case.headers["accept"] = "text/html"
    if case.path == "/admin/v1/events" and case.query and str(case.query.get("wait", "")).isdecimal():
        # Values that are too long stay so, and are refused.
        if int(case.query["wait"]) <= 50:
            case.query["wait"] = 0


@schemathesis.hook
def filter_failure(context, failure, case, response):
    """An unknown model is a 503 by the specification, and not a fault of the server."""
    if type(failure).__name__ != "ServerError" or response.status_code != 503:
        return True
    return response.json()["error"]["code"] != "model_not_found"
