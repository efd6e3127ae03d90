#!/usr/bin/env bash
# One request to each kind of route.
set -euo pipefail
url="${1:-http://127.0.0.1:8000}"

curl -sS "$url/v1/models"; echo
curl -sSN "$url/v1/chat/completions" -H 'Content-Type: application/json' -d '{
  "messages": [{"role": "user", "content": "Say hello."}],
  "max_tokens": 20, "seed": 1, "stream": true, "stream_options": {"include_usage": true}
}'
curl -sS "$url/v1/completions" -H 'Content-Type: application/json' -d '{
  "prompt": ["Once upon", "The end"], "max_tokens": 8, "n": 2, "logprobs": 1
}'; echo
curl -sS "$url/v1/responses" -H 'Content-Type: application/json' -d '{
  "input": "Say hello.", "max_output_tokens": 20
}'; echo
curl -sS "$url/generate" -H 'Content-Type: application/json' -d '{
  "text": "Once upon", "sampling_params": {"max_new_tokens": 8, "temperature": 0}
}'; echo
curl -sS "$url/tokenize" -H 'Content-Type: application/json' -d '{"prompt": "Say hello."}'; echo
curl -sS "$url/metrics" | grep spec_decode
