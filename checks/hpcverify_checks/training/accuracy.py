"""
How far the gradients of a step in fp32 are from those of the same step in fp64.

A part that errs the same way every time agrees with itself, and ranks that all err alike
agree with each other. The same step in fp64, which other instructions compute, is an oracle
for that: the gradients of three shapes and three seeds were within 5e-7 of it, and with an
activation that is off by a thousandth they were 1.8e-4 and more away on one CPU, 3.0e-5 on
another where one element of each product was. An error that both types have in common is
not seen. This is no proof to the last bit, so a larger distance only warns. Gradients in
bf16 are themselves rounded to a few thousandths: on GPUs the vote of parts of a kind
has to decide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hpcverify_checks.training.steps import TrainingJob, compute_initial_key, draw_batch

if TYPE_CHECKING:
    import torch

MAX_GRADIENT_ERROR = 1e-5
"""Relative; 20 times what was measured without an error, a twentieth of that with one."""


def measure_gradient_error(job: TrainingJob, device: torch.device) -> float:
    """Measure the distance of the first step's gradients, relative, of the worst group."""
    import torch

    from hpcverify_checks.training.transformer import Transformer, find_groups, make_initial

    model, made = Transformer(job.shape), list[torch.Tensor]()
    for dtype in (torch.float32, torch.float64):
        weights = make_initial(model, compute_initial_key(job), device).to(dtype)
        gradients = torch.zeros_like(weights)
        model.use(weights, gradients)
        model(draw_batch(job, 0).to(device)).backward()
        made.append(gradients)
    single, double = made
    norm, groups = torch.linalg.vector_norm, find_groups(model).values()
    return float(torch.stack([norm(single[g] - double[g]) / norm(double[g]) for g in groups]).max())
