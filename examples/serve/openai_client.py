"""Stream a chat from `outrider serve`, and see what speculation did for it."""

from openai import OpenAI

client = OpenAI(base_url="http://127.0.0.1:8000/v1", api_key="none")
model = client.models.list().data[0].id

stream = client.chat.completions.create(
    model=model,
    messages=[{"role": "user", "content": "Count from one to twenty in words."}],
    max_tokens=120,
    stream=True,
    stream_options={"include_usage": True},
    extra_body={"top_k": 40, "return_metrics": True},
)
for chunk in stream:
    for choice in chunk.choices:
        print(choice.delta.content or "", end="", flush=True)
        if choice.finish_reason:
            print(f"\n[{choice.finish_reason}; seed {choice.seed} repeats this answer]")
    if chunk.usage:
        print(chunk.usage.completion_tokens, "tokens,", chunk.metrics["speculative_decoding"])
