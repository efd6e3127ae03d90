"""How long is a server of two ranks away after one of them is killed or stopped under load?

Run: python -m benchmarks.ranks.time_lost_rank --model FOLDER [--streams 50]
"""

import argparse
import json
import os
import signal
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

from benchmarks.roles.servers import Pair, one_server, post

_UNDER_WAY_S = 0.5  # from the first request to the signal
_POLL_S = 0.05


def time_loss(pair: Pair, lost: signal.Signals, streams: int) -> tuple[float, float]:
    """Seconds from the signal to new ranks, and to the first answer that ends after that."""
    with ThreadPoolExecutor(streams) as pool:
        answers = [pool.submit(_answered_at, pair.decode, number) for number in range(streams)]
        time.sleep(_UNDER_WAY_S)
        pid, began_s = _other_rank(pair.decode), time.perf_counter()
        os.kill(pid, lost)
        while _other_rank(pair.decode) in (0, pid):
            time.sleep(_POLL_S)
        back_s = time.perf_counter()
        ends = [each.result() for each in answers]
    return back_s - began_s, min(each for each in ends if each > back_s) - began_s


def _answered_at(url: str, number: int) -> float:
    """When an answer ended; 0 if it failed."""
    body = {"prompt": [5 + number] * 8, "max_tokens": 200, "ignore_eos": True, "seed": number}
    try:
        post(url, body)
    except urllib.error.HTTPError:
        return 0.0
    return time.perf_counter()


def _other_rank(url: str) -> int:
    """The process of rank 1; 0 while there is none."""
    try:
        with urllib.request.urlopen(url + "/server_info", timeout=5) as response:
            ranks = json.loads(response.read())["ranks"]
    except (OSError, KeyError):
        return 0
    return int(ranks[1]["pid"]) if len(ranks) > 1 else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--streams", type=int, default=50)
    args = parser.parse_args()
    flags = ("--tp", "2", "--draft", "ngram", "--device", "cpu", "--max-num-seqs", "8")
    with one_server(args.model, flags) as pair:
        for lost in (signal.SIGKILL, signal.SIGSTOP):
            back_s, answer_s = time_loss(pair, lost, args.streams)
            print(
                f"{lost.name}: new ranks {back_s:.1f} s, first answer {answer_s:.1f} s", flush=True
            )


if __name__ == "__main__":
    main()
