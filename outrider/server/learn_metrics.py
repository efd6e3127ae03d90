"""What a server has learned, as metrics. Only a server with --learn has them."""

from prometheus_client import CollectorRegistry, Gauge

from outrider.server.learner_messages import LearnStatus
from outrider.server.metric_names import OUR_PREFIX

_GAUGES = {
    "learn_buffer_bytes": "Bytes of the texts that are trained on.",
    "learn_buffer_texts": "Texts that are trained on, or held back to measure heads.",
    "learn_rounds": "Rounds of training since the start.",
    "learn_steps": "Steps of training since the start.",
    "learn_head_version": "Version of the head in use; 0: the head before learning.",
    "learn_acceptance_before": "Tokens per round of the head in use, in the last round.",
    "learn_acceptance_after": "Tokens per round of the trained head, in the last round.",
    "learn_is_training": "1 while a step of training runs.",
}


class LearnMetrics:
    """Owns the gauges of one server."""

    def __init__(self, registry: CollectorRegistry, model_name: str) -> None:
        self._gauges = {
            name: Gauge(OUR_PREFIX + name, text, ["model_name"], registry=registry).labels(
                model_name
            )
            for name, text in _GAUGES.items()
        }

    def note(self, status: LearnStatus) -> None:
        values = {
            "learn_buffer_bytes": status.buffer_bytes,
            "learn_buffer_texts": status.buffer_texts,
            "learn_rounds": status.rounds,
            "learn_steps": status.steps,
            "learn_head_version": status.version,
            "learn_acceptance_before": status.acceptance_before,
            "learn_acceptance_after": status.acceptance_after,
            "learn_is_training": status.state == "training",
        }
        for name, value in values.items():
            self._gauges[name].set(value)
