"""Stream a chat with LangChain: pip install langchain-openai."""

from langchain_openai import ChatOpenAI

chat = ChatOpenAI(
    base_url="http://127.0.0.1:8000/v1",
    api_key="none",
    model="smollm2-135m-instruct",
    temperature=0.7,
    seed=7,
    extra_body={"min_p": 0.05, "speculative": {"steps": 3}},
)
for chunk in chat.stream("Name three rivers."):
    print(chunk.content, end="", flush=True)
print()
