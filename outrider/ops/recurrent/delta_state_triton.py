"""What kernels of the gated delta rule share: how one token changes a state."""
# Triton reads kernels as source; it has no types for them.
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators

import triton
import triton.language as tl


@triton.jit
def unit_vector(at, channel, inside, eps):
    """A key or a query of unit length."""
    x = tl.load(at + channel, mask=inside, other=0.0).to(tl.float32)
    return x * tl.rsqrt(tl.sum(x * x) + eps)


@triton.jit
def softplus(x):
    """log(1 + e^x), as torch computes it."""
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(x)))


@triton.jit
def apply_token(state, key, value, beta, decay_gate, decay_scale, dt_bias):
    """The state after a token."""
    state = state * tl.exp(decay_scale * softplus(decay_gate.to(tl.float32) + dt_bias))
    change = (value - tl.sum(state * key[:, None], 0)) * tl.sigmoid(beta.to(tl.float32))
    return state + key[:, None] * change[None, :]


@triton.jit
def apply_accepted(
    state, inputs, num_accepted, head, key_head, channel, column, decay_scale, dt_bias, eps,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr,
):  # fmt: skip
    """The state after the first `num_accepted` nodes of the row's last step."""
    KEYS: tl.constexpr = KEY_HEADS * KEY_DIM
    VALUES: tl.constexpr = VALUE_HEADS * VALUE_DIM
    is_value = column < VALUE_DIM
    for _ in range(num_accepted):
        key = unit_vector(inputs + key_head * KEY_DIM, channel, channel < KEY_DIM, eps)
        at = inputs + KEYS + head * VALUE_DIM + column
        value = tl.load(at, mask=is_value, other=0.0).to(tl.float32)
        beta = tl.load(inputs + KEYS + VALUES + head)
        decay_gate = tl.load(inputs + KEYS + VALUES + VALUE_HEADS + head)
        state = apply_token(state, key, value, beta, decay_gate, decay_scale, dt_bias)
        inputs += KEYS + VALUES + 2 * VALUE_HEADS
    return state
