"""A small body that every route with a body takes."""

BASES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "the"}], "max_tokens": 2},
    "/v1/completions": {"prompt": "the", "max_tokens": 2},
    "/v1/embeddings": {"input": "the"},
    "/v1/responses": {"input": "the", "max_output_tokens": 2},
    "/generate": {"text": "the", "sampling_params": {"max_new_tokens": 2}},
    "/tokenize": {"prompt": "the"},
    "/detokenize": {"tokens": [5]},
}


def fields_of(schema: dict, path: str) -> list[str]:
    """The fields of a route's body, as our own schema lists them."""
    body = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    models = schema["components"]["schemas"]
    return sorted(models[body["$ref"].rpartition("/")[2]]["properties"])
