"""Requests and responses as they go over HTTP, in the shapes of OpenAI, vLLM and SGLang."""
