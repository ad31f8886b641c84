"""Small models for tests of causeway.torch, and training whose bits do not depend on sharding."""

import torch
from torch import nn

import emulated  # noqa: F401 (where it is chosen, tensors are on its device)


class SmallModel(nn.Module):
    """A language model's shape without its attention: embedding, blocks, a tied head."""

    def __init__(self, width=10):
        super().__init__()
        self.embed = nn.Embedding(13, 7)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(7, width), nn.Tanh(), nn.Linear(width, 7)) for _ in range(2))
        self.norm = nn.LayerNorm(7)
        self.head = nn.Linear(7, 13, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        return self.head(self.norm(hidden))


def small_model(dtype=torch.float32, seed=0, width=10):
    torch.manual_seed(seed)
    return SmallModel(width).to(dtype)


def tokens(step, size=(4, 6)):
    generator = torch.Generator().manual_seed(1000 + step)
    return torch.randint(0, 13, size, generator=generator)


def loss_of(model, step):
    batch = tokens(step)
    logits = model(batch[:, :-1]).float()
    return nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def step_once(model, optimizer, step):
    loss_of(model, step).backward()
    optimizer.step()
    optimizer.zero_grad()


def train(site, model, optimizer):
    """From joining to the run's end."""
    with site:
        while not site.should_stop:
            step_once(model, optimizer, site.current_step)


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def synthetic_gradients(model, step):
    """Gives every parameter a gradient that is a function of step and place alone."""
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        places = torch.arange(parameter.numel(), dtype=torch.float32).reshape(parameter.shape)
        gradient = torch.sin(places * 0.7 + step).to(parameter.dtype)
        if hasattr(parameter, "device_mesh"):
            from torch.distributed.tensor import distribute_tensor
            gradient = distribute_tensor(gradient, parameter.device_mesh, parameter.placements)
        parameter.grad = gradient


def values_of(model):
    """Names and values that a run begins with, in fp32."""
    return {name: parameter.detach().float().numpy()
            for name, parameter in model.named_parameters() if parameter.requires_grad}


def equal(one, other):
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters()))
