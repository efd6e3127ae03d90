"""`outrider bench speculation`: plain decoding against drafters, on prompts by kind, on a CPU."""
