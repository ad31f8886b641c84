"""A decoder-only transformer, forward and backward by hand, in float64.

Pre-norm residual blocks: RMSNorm, rotary positions (half-split layout), causal grouped-query
attention with optional normalization of query and key heads, SwiGLU or GELU (tanh form). The head
is the embedding or a matrix of its own; logits of padding rows take no part in the softmax. The
loss is the mean over all tokens of the cross entropy plus z_loss * log(Z)^2.

Weights are a dict of arrays under Hugging Face's names, [outputs, inputs].
"""

import numpy as np

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


class Transformer:
    def __init__(self, model):
        self.layers = model["layers"]
        self.heads = model["heads"]
        self.kv_heads = model["kv_heads"]
        self.head_dim = model["head_dim"]
        self.swiglu = model["mlp"] == "SWIGLU"
        self.qk_norm = model["qk_norm"]
        self.untied_head = model["untied_head"]
        self.vocabulary = model["vocabulary_size"]
        self.epsilon = model["norm_epsilon"]
        self.z_loss = model["z_loss"]
        half = self.head_dim // 2
        frequencies = model["rope_theta"] ** (-np.arange(half) / half)
        angles = np.outer(np.arange(model["sequence_length"]), frequencies)
        # [position, 1, half]: broadcast over heads.
        self.cos = np.cos(angles)[:, None, :]
        self.sin = np.sin(angles)[:, None, :]

    def loss_and_gradients(self, weights, inputs, targets):
        """inputs, targets: integers [batch, length]. Returns (loss, {name: gradient})."""
        gradients = {}
        x = weights[EMBEDDING][inputs]
        tapes = []
        for layer in range(self.layers):
            x, tape = self._block_forward(weights, f"model.layers.{layer}.", x)
            tapes.append(tape)
        hidden, final_tape = self._norm_forward(weights[FINAL_NORM], x)

        head = HEAD if self.untied_head else EMBEDDING
        logits = (hidden @ weights[head].T)[..., : self.vocabulary]
        largest = logits.max(axis=-1, keepdims=True)
        exponentials = np.exp(logits - largest)
        total = exponentials.sum(axis=-1, keepdims=True)
        log_z = np.log(total) + largest
        chosen = np.take_along_axis(logits, targets[..., None], axis=-1)
        tokens = targets.size
        loss = float((log_z - chosen + self.z_loss * log_z**2).sum() / tokens)

        d_logits = exponentials / total * (1.0 + 2.0 * self.z_loss * log_z)
        at_target = np.take_along_axis(d_logits, targets[..., None], axis=-1) - 1.0
        np.put_along_axis(d_logits, targets[..., None], at_target, axis=-1)
        d_logits /= tokens
        d_head = np.zeros_like(weights[head])
        d_head[: self.vocabulary] = _weight_gradient(d_logits, hidden)
        d_hidden = d_logits @ weights[head][: self.vocabulary]

        dx, gradients[FINAL_NORM] = self._norm_backward(weights[FINAL_NORM], final_tape, d_hidden)
        for layer in reversed(range(self.layers)):
            prefix = f"model.layers.{layer}."
            dx = self._block_backward(weights, prefix, tapes[layer], dx, gradients)
        d_embedding = np.zeros_like(weights[EMBEDDING])
        np.add.at(d_embedding, inputs, dx)
        if self.untied_head:
            gradients[HEAD] = d_head
            gradients[EMBEDDING] = d_embedding
        else:
            gradients[EMBEDDING] = d_embedding + d_head
        return loss, gradients

    # --- One block -------------------------------------------------------------------------------

    def _block_forward(self, weights, prefix, x):
        normed, norm_tape = self._norm_forward(weights[prefix + "input_layernorm.weight"], x)
        attention, attention_tape = self._attention_forward(weights, prefix, normed)
        middle = x + attention
        normed2, norm_tape2 = self._norm_forward(
            weights[prefix + "post_attention_layernorm.weight"], middle)
        mlp, mlp_tape = self._mlp_forward(weights, prefix, normed2)
        return middle + mlp, (norm_tape, attention_tape, norm_tape2, mlp_tape)

    def _block_backward(self, weights, prefix, tape, dy, gradients):
        norm_tape, attention_tape, norm_tape2, mlp_tape = tape
        d_normed2 = self._mlp_backward(weights, prefix, mlp_tape, dy, gradients)
        name = prefix + "post_attention_layernorm.weight"
        d_middle, gradients[name] = self._norm_backward(weights[name], norm_tape2, d_normed2)
        d_middle = d_middle + dy
        d_normed = self._attention_backward(weights, prefix, attention_tape, d_middle, gradients)
        name = prefix + "input_layernorm.weight"
        dx, gradients[name] = self._norm_backward(weights[name], norm_tape, d_normed)
        return dx + d_middle

    # --- RMSNorm over the last axis --------------------------------------------------------------

    def _norm_forward(self, weight, x):
        inverse = 1.0 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + self.epsilon)
        return x * inverse * weight, (x, inverse)

    @staticmethod
    def _norm_backward(weight, tape, dy):
        x, inverse = tape
        scaled = x * inverse
        d_weight = (dy * scaled).reshape(-1, x.shape[-1]).sum(axis=0)
        d_scaled = dy * weight
        dx = inverse * (d_scaled - scaled * (d_scaled * scaled).mean(axis=-1, keepdims=True))
        return dx, d_weight

    # --- Attention -------------------------------------------------------------------------------

    def _rotate(self, x, direction):
        """Turns the pairs (x[i], x[i + half]) by the position's angle, or back."""
        length = x.shape[1]
        cos, sin = self.cos[:length], direction * self.sin[:length]
        half = self.head_dim // 2
        first, second = x[..., :half], x[..., half:]
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)

    def _attention_forward(self, weights, prefix, x):
        batch, length, _ = x.shape
        prefix += "self_attn."

        def project(name, heads):
            return (x @ weights[prefix + name].T).reshape(batch, length, heads, self.head_dim)

        q = project("q_proj.weight", self.heads)
        k = project("k_proj.weight", self.kv_heads)
        v = project("v_proj.weight", self.kv_heads)
        q_tape = k_tape = None
        if self.qk_norm:
            q, q_tape = self._norm_forward(weights[prefix + "q_norm.weight"], q)
            k, k_tape = self._norm_forward(weights[prefix + "k_norm.weight"], k)
        q, k = self._rotate(q, 1.0), self._rotate(k, 1.0)

        # Query head h reads key head h // (heads / kv_heads).
        group = self.heads // self.kv_heads
        q = q.reshape(batch, length, self.kv_heads, group, self.head_dim)
        scores = np.einsum("bqhgd,bkhd->bhgqk", q, k) / np.sqrt(self.head_dim)
        future = np.triu(np.ones((length, length), dtype=bool), 1)
        scores = np.where(future, -np.inf, scores)
        p = np.exp(scores - scores.max(axis=-1, keepdims=True))
        p /= p.sum(axis=-1, keepdims=True)
        mixed = np.einsum("bhgqk,bkhd->bqhgd", p, v).reshape(batch, length, -1)
        return mixed @ weights[prefix + "o_proj.weight"].T, (x, q, k, v, p, mixed, q_tape, k_tape)

    def _attention_backward(self, weights, prefix, tape, dy, gradients):
        x, q, k, v, p, mixed, q_tape, k_tape = tape
        batch, length, _ = x.shape
        prefix += "self_attn."
        gradients[prefix + "o_proj.weight"] = _weight_gradient(dy, mixed)
        d_mixed = (dy @ weights[prefix + "o_proj.weight"]).reshape(q.shape)
        dv = np.einsum("bhgqk,bqhgd->bkhd", p, d_mixed)
        dp = np.einsum("bqhgd,bkhd->bhgqk", d_mixed, v)
        ds = p * (dp - (dp * p).sum(axis=-1, keepdims=True)) / np.sqrt(self.head_dim)
        dq = np.einsum("bhgqk,bkhd->bqhgd", ds, k)
        dk = np.einsum("bhgqk,bqhgd->bkhd", ds, q)
        dq = self._rotate(dq.reshape(batch, length, self.heads, self.head_dim), -1.0)
        dk = self._rotate(dk, -1.0)
        if self.qk_norm:
            name = prefix + "q_norm.weight"
            dq, gradients[name] = self._norm_backward(weights[name], q_tape, dq)
            name = prefix + "k_norm.weight"
            dk, gradients[name] = self._norm_backward(weights[name], k_tape, dk)
        dx = 0.0
        for name, d in (("q_proj.weight", dq), ("k_proj.weight", dk), ("v_proj.weight", dv)):
            d = d.reshape(batch, length, -1)
            gradients[prefix + name] = _weight_gradient(d, x)
            dx = dx + d @ weights[prefix + name]
        return dx

    # --- MLP -------------------------------------------------------------------------------------

    def _mlp_forward(self, weights, prefix, x):
        prefix += "mlp."
        up = x @ weights[prefix + "up_proj.weight"].T
        if self.swiglu:
            gate = x @ weights[prefix + "gate_proj.weight"].T
            inner = gate / (1.0 + np.exp(-gate)) * up
        else:
            gate = None
            inner = 0.5 * up * (1.0 + np.tanh(_gelu_argument(up)))
        return inner @ weights[prefix + "down_proj.weight"].T, (x, up, gate, inner)

    def _mlp_backward(self, weights, prefix, tape, dy, gradients):
        x, up, gate, inner = tape
        prefix += "mlp."
        gradients[prefix + "down_proj.weight"] = _weight_gradient(dy, inner)
        d_inner = dy @ weights[prefix + "down_proj.weight"]
        dx = 0.0
        if self.swiglu:
            sigmoid = 1.0 / (1.0 + np.exp(-gate))
            d_up = d_inner * gate * sigmoid
            d_gate = d_inner * up * sigmoid * (1.0 + gate * (1.0 - sigmoid))
            gradients[prefix + "gate_proj.weight"] = _weight_gradient(d_gate, x)
            dx = d_gate @ weights[prefix + "gate_proj.weight"]
        else:
            tanh = np.tanh(_gelu_argument(up))
            slope = np.sqrt(2.0 / np.pi) * (1.0 + 3.0 * 0.044715 * up * up)
            d_up = d_inner * (0.5 * (1.0 + tanh) + 0.5 * up * (1.0 - tanh * tanh) * slope)
        gradients[prefix + "up_proj.weight"] = _weight_gradient(d_up, x)
        return dx + d_up @ weights[prefix + "up_proj.weight"]


def _gelu_argument(x):
    return np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)


def _weight_gradient(dy, x):
    """Of y = x W^T: the sum over all tokens of dy x^T."""
    return dy.reshape(-1, dy.shape[-1]).T @ x.reshape(-1, x.shape[-1])
